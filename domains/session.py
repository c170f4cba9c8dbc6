"""Statements of recovery: each with a deadline on this side, a named point before and after it, and its time taken.

The points are where a test kills the process: between any two statements the next cycle must converge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import psycopg
import psycopg_pool
import redis.exceptions as broker
from psycopg.abc import Buffer
from psycopg.rows import dict_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import AsyncConnectionPool

from ..config.errors import PfsupError
from ..config.values import Database
from ..shared.db.connect import Connection, limited
from ..shared.db.deadline import hang_up
from ..shared.db.ready import drained_within
from ..shared.drain import Drain
from ..shared.points import NO_POINTS, Points
from .pause import pause_between_candidates

Row = dict[str, Any]

# What the server says about itself or its schema, not about one row: the batch ends, the domain waits.
_NOT_THE_ROWS = ("08", "28", "3D", "3F", "42", "53", "57P", "58", "25006")


class Session:
    """Transactions on a pool. `database_s` and `pool_wait_s` add up what statements and waits for a connection took."""

    def __init__(
        self, pool: AsyncConnectionPool[Connection], database: Database, *, points: Points = NO_POINTS
    ) -> None:
        self._pool = pool
        self._deadline_s = database.statement_timeout + database.connect_timeout
        self._points = points
        self.database_s = 0.0
        self.pool_wait_s = 0.0
        self.statements = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        """A transaction that commits at the end of the block, or rolls back on an error.

        Raises psycopg_pool.PoolTimeout when no connection is free within `connect_timeout`.
        """
        asked = time.monotonic()
        async with self._pool.connection() as conn:
            self.pool_wait_s += time.monotonic() - asked
            async with self._limits(conn), limited(conn):
                yield Transaction(self, conn)
                await self._points.reach("before commit")
        await self._points.reach("after commit")

    @asynccontextmanager
    async def _limits(self, conn: Connection) -> AsyncGenerator[None]:
        """The whole transaction has a deadline too: a frozen server leaves BEGIN and COMMIT unanswered."""
        alarm = asyncio.get_running_loop().call_later(3 * self._deadline_s, hang_up, conn)
        try:
            yield
        finally:
            alarm.cancel()

    async def run(self, conn: Connection, name: str, query: bytes, params: Mapping[str, Any]) -> list[Row]:
        """One statement on `conn`, within the deadline; the connection is hung up on when that passes."""
        await self._points.reach(name)
        alarm = asyncio.get_running_loop().call_later(self._deadline_s, hang_up, conn)
        began = time.monotonic()
        try:
            async with conn.cursor(row_factory=dict_row) as cursor:
                cursor.adapters.register_loader("timestamptz", AnyTime)
                await cursor.execute(query, params, prepare=None if conn.pooled else True)
                return await cursor.fetchall() if cursor.description else [{"changed": cursor.rowcount}]
        finally:
            alarm.cancel()
            self.database_s += time.monotonic() - began
            self.statements += 1


class AnyTime(TimestamptzLoader):
    """A time that Python cannot hold (infinity, BC, after the year 9999) comes as the server's text, which compares and
    goes back as it came: one row with such a time would else end every cycle of its domain.
    """

    def load(self, data: Buffer) -> datetime | str:  # pyright: ignore[reportIncompatibleMethodOverride] - wider on purpose
        """The time, or its text."""
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


async def paced(drain: Drain, began: float, share: float) -> None:
    """Rest after the candidate whose judging began at `began` (monotonic); a drain ends the rest."""
    pause_s = pause_between_candidates(took_s=time.monotonic() - began, share=share)
    if pause_s > 0:
        await drained_within(drain, pause_s)


class Transaction:
    """One open transaction."""

    __slots__ = ("_conn", "_session")

    def __init__(self, session: Session, conn: Connection) -> None:
        self._session = session
        self._conn = conn

    async def run(self, queries: Mapping[str, bytes], name: str, params: Mapping[str, Any]) -> list[Row]:
        """Run the statement of that name and return its rows as dictionaries.

        A statement that returns none, such as an UPDATE, answers one row: {"changed": how many}.
        """
        return await self._session.run(self._conn, name, queries[name], params)


def is_the_rows(error: Exception) -> bool:
    """Whether a failure is about one candidate: then it is noted and the batch goes on.

    False for what every other candidate would meet too: no connection, a server that stops, a table that vanished.
    """
    if isinstance(error, PfsupError | psycopg_pool.PoolTimeout | broker.RedisError | OSError):
        return False
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        return bool(state) and not state.startswith(_NOT_THE_ROWS)
    return True


def told(error: Exception) -> str:
    """A failure for the ledger: its kind and the server's own sentence, never a statement's parameters."""
    diagnosis: Mapping[str, Any] | None = getattr(error, "diag", None)
    said = getattr(diagnosis, "message_primary", None) if diagnosis is not None else None
    return f"{type(error).__name__}: {said or error}"[:2000]
