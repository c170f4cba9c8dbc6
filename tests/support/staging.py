"""The application's side of the outbox: its calls, and sessions that wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from .database import Database
from .runs import Row, Session
from .waiting import HANG_S, until

T = TypeVar("T")


class App(Session):
    """The application's role: it stages and cancels."""

    def stage(
        self,
        *,
        actor: str | None = "paint",
        aggregate_id: str | None = "7",
        payload: Any = None,
        available_at: Any = None,
        key: str | None = None,
        **options: Any,
    ) -> Row:
        return self.one(
            "SELECT * FROM pfsup.stage(%s, %s, %s, %s, %s, %s)",
            actor,
            aggregate_id,
            None if payload is None else Jsonb(payload),
            available_at,
            key,
            Jsonb(options),
        )

    def stage_many(self, items: Any) -> list[Row]:
        return self.rows("SELECT * FROM pfsup.stage_many(%s)", Jsonb(items))

    def cancel(self, which: int | str) -> Row:
        return self.one("SELECT * FROM pfsup.cancel(%s)", which)

    @property
    def pid(self) -> int:
        """The server's process of this session."""
        return self.conn.info.backend_pid


@contextmanager
def app_of(database: Database) -> Generator[App]:
    """An autocommit connection of the application's role."""
    with psycopg.connect(database.app_url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield App(conn)


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run the calls at the same moment, a thread each; their answers in order. The first failure is raised."""
    gate = threading.Barrier(len(calls))

    def through_the_gate(call: Callable[[], T]) -> T:
        gate.wait(HANG_S)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(HANG_S) for future in [pool.submit(through_the_gate, call) for call in calls]]


@contextmanager
def meanwhile(call: Callable[[], T]) -> Generator[Callable[[], T]]:
    """Run the call in a thread of its own while the block runs; what it yields waits for the answer."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        yield lambda: future.result(HANG_S)


def until_blocked(database: Database, pid: int) -> None:
    """Wait until that session waits for somebody's lock."""
    with database.superuser() as conn:
        until(
            lambda: conn.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [pid]).fetchone() == (True,),
            what=f"session {pid} waits for a lock",
        )
