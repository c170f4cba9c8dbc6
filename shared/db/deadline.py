"""Statements with a deadline on this side, for a server that says nothing at all.

Cancelling psycopg's wait is no way out: it first asks the server to cancel and then waits for its answer, 10 s together
on a frozen backend (psycopg 3.3.9). Hanging up is immediate: the wait ends as if the server had closed the connection.
"""

from __future__ import annotations

import asyncio
import os
import socket

import psycopg
from psycopg.rows import TupleRow

from .connect import Connection, Params, fetch


async def fetch_within(conn: Connection, query: bytes, params: Params = None, *, deadline_s: float) -> list[TupleRow]:
    """`fetch`, but after `deadline_s` seconds the connection is hung up on, and psycopg.OperationalError is raised."""
    alarm = asyncio.get_running_loop().call_later(deadline_s, hang_up, conn)
    try:
        return await fetch(conn, query, params)
    finally:
        alarm.cancel()


def hang_up(conn: Connection) -> None:
    """End a connection's socket under whoever waits on it. The descriptor stays open: its owner closes it."""
    try:
        with socket.socket(fileno=os.dup(conn.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it is closed already
