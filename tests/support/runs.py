"""Rows of the outbox in every state a worker meets, and the worker's calls of its functions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from .database import Database

Row = Any  # a named tuple of whatever was asked for


class Begun(NamedTuple):
    id: int
    token: Any


class Session:
    """One autocommit connection of one role."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def rows(self, query: str, *params: Any) -> list[Row]:
        """Everything that `query` answers."""
        found = self.conn.execute(query.encode(), params)
        return found.fetchall() if found.description else []

    def one(self, query: str, *params: Any) -> Row:
        """The one row that `query` answers."""
        (row,) = self.rows(query, *params)
        return row

    def value(self, query: str, *params: Any) -> Any:
        """The one value that `query` answers."""
        return self.one(query, *params)[0]


class Owner(Session):
    """The schema's owner: arranges rows and looks at them, never what is tested."""

    def stage(self, *, actor: str = "paint", key: str | None = None, payload: Any = None, **options: Any) -> int:
        """A pending row."""
        return self.value(
            "SELECT id FROM pfsup.stage(%s, '7', %s, NULL, %s, %s)",
            actor,
            None if payload is None else Jsonb(payload),
            key,
            Jsonb(options),
        )

    def claim(self, number: int) -> None:
        """A dispatcher claims the row, as claim_due does."""
        self.rows(
            "UPDATE pfsup.async_dispatches SET lease_token = gen_random_uuid(), claimed_by = 'boot/1',"
            " lease_expires_at = clock_timestamp() + interval '30 s' WHERE id = %s",
            number,
        )

    def mark(self, number: int, *, sink_ref: str = "pfsup:pfsup:paint 1-1") -> None:
        """A dispatcher marks the row as sent."""
        self.rows(
            "UPDATE pfsup.async_dispatches SET status = 'sent', lease_token = NULL, claimed_by = NULL,"
            " lease_expires_at = NULL, sent_at = clock_timestamp(), deliveries = deliveries + 1, sink_ref = %s,"
            " check_at = clock_timestamp() WHERE id = %s",
            sink_ref,
            number,
        )

    def sent(self, **staged: Any) -> int:
        """A row whose message waits in the stream."""
        number = self.stage(**staged)
        self.mark(number)
        return number

    def row(self, number: int) -> Row:
        """The row as it stands."""
        return self.one("SELECT * FROM pfsup.async_dispatches WHERE id = %s", number)

    def status(self, number: int) -> str:
        return str(self.row(number).status)

    def policy(self, actor: str, **columns: Any) -> None:
        """Set the actor's policy."""
        names = ", ".join(columns)
        places = ", ".join(["%s"] * len(columns))
        self.rows(f"INSERT INTO pfsup.actors (name, {names}) VALUES (%s, {places})", actor, *columns.values())

    def expire(self, number: int) -> None:
        """The worker's lease has ended."""
        self.rows(
            "UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE id = %s",
            number,
        )

    def take_away(self, number: int) -> None:
        """Recovery puts a lost run's row back in line."""
        self.expire(number)
        assert self.value("SELECT outcome FROM pfsup.redispatch(%s)", number) == "staged"

    def lose(self, number: int) -> None:
        """Recovery takes the run for lost after an outside effect began."""
        self.expire(number)
        query = "SELECT outcome FROM pfsup.end_lost(%s, %s, 'unknown', 'its worker was lost')"
        assert self.value(query, number, self.row(number).lease_token) == "ended"

    def source(self) -> str:
        return str(self.value("SELECT installation || '/' || epoch FROM pfsup.meta"))


class Worker(Session):
    """A worker's role, that calls the functions as any language would."""

    def begin(
        self, number: int, *, actor: str = "paint", worker: str = "w1", lease: str = "30 s", **options: Any
    ) -> Row:
        return self.one(
            "SELECT * FROM pfsup.begin_work(%s, %s, %s, %s, %s)", number, actor, worker, lease, Jsonb(options)
        )

    def begun(self, number: int, **arguments: Any) -> Begun:
        """Begin a run that must be let in."""
        answer = self.begin(number, **arguments)
        assert answer.verdict == "go", answer
        return Begun(number, answer.token)

    def beat(self, run: Begun, lease: str = "30 s") -> Row:
        return self.one("SELECT * FROM pfsup.beat(%s, %s, %s)", *run, lease)

    def effect(self, run: Begun, state: str, name: str = "main", ref: str | None = None) -> Row:
        return self.one("SELECT * FROM pfsup.effect(%s, %s, %s, %s, %s)", *run, state, name, ref)

    def settle(self, run: Begun, outcome: str, error: str | None = None, **options: Any) -> Row:
        return self.one("SELECT * FROM pfsup.settle(%s, %s, %s, %s, %s)", *run, outcome, error, Jsonb(options))


@contextmanager
def owner_of(database: Database) -> Generator[Owner]:
    """A connection of the schema's owner."""
    with psycopg.connect(database.url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield Owner(conn)


@contextmanager
def worker_of(database: Database) -> Generator[Worker]:
    """A connection of the worker's role."""
    with psycopg.connect(database.worker_url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield Worker(conn)
