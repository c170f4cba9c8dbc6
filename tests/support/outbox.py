"""Arranging and looking at the outbox in tests: staging through the contract, looking as the superuser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg

from .database import Database


def stage(database: Database, actor: str = "mail", count: int = 1, **options: Any) -> list[int]:
    """Stage `count` envelopes as the application does, in one transaction; return their ids in order."""
    query = (
        "SELECT s.id FROM generate_series(1, %(count)s) AS n,"
        " pfsup.stage(%(actor)s, n::text, %(payload)s::jsonb, %(at)s::timestamptz, NULL, %(options)s::jsonb) AS s"
        " ORDER BY 1"
    )
    known = {"payload": None, "at": None, "options": "{}"} | options
    with psycopg.connect(database.app_url) as conn:
        return [row[0] for row in conn.execute(query.encode(), {"count": count, "actor": actor, **known}).fetchall()]


def fill(database: Database, queue: str, count: int, *, sent: bool = False) -> None:
    """Write many due rows, or rows that look sent, past stage(): it takes five times as long."""
    sent_columns = (", status, sent_at, check_at, sink_ref", ", 'sent', now(), now() + '60 s', 's 1-1'")
    names, values = sent_columns if sent else ("", "")
    query = (
        f"INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id{names})"
        f" SELECT 'mail', %s, n::text{values} FROM generate_series(1, %s) AS n"
    )
    with database.superuser() as conn:
        conn.execute(query.encode(), (queue, count))


def statuses(database: Database) -> Counter[str]:
    """How many rows have each status."""
    with database.superuser() as conn:
        return Counter(dict(conn.execute("SELECT status, count(*) FROM pfsup.async_dispatches GROUP BY 1").fetchall()))


def column(database: Database, expression: str, where: str = "true") -> list[Any]:
    """One expression over the rows that match, in the order of their ids."""
    query = f"SELECT {expression} FROM pfsup.async_dispatches WHERE {where} ORDER BY id"
    with database.superuser() as conn:
        return [row[0] for row in conn.execute(query.encode()).fetchall()]


def leased(database: Database) -> int:
    """How many pending rows are under a claim."""
    return len(column(database, "id", "status = 'pending' AND lease_token IS NOT NULL"))


class Claimer:
    """A dispatcher by hand: the SQL functions with the rights of the role, one autocommit connection."""

    def __init__(self, database: Database, *, claimed_by: str = "hand/1") -> None:
        self.conn = psycopg.connect(database.run_url, autocommit=True)
        self._claimed_by = claimed_by
        self.summary: tuple[Any, ...] = ()

    def __enter__(self) -> Claimer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.conn.close()

    def claim(self, batch: int = 100, *, lease: str = "30 s", token: UUID | None = None, **named: Any) -> list[int]:
        """Claim and return the ids in the order in which they came; `summary` keeps the last row, `token` the token."""
        self.token = token or uuid4()
        extra = "".join(f", {name} => %({name})s" for name in named)
        query = f"SELECT * FROM pfsup.claim_due(%(t)s, %(by)s, %(lease)s, %(batch)s{extra})"
        params = {"t": self.token, "by": self._claimed_by, "lease": lease, "batch": batch, **named}
        *self.rows, self.summary = self.conn.execute(query.encode(), params).fetchall()
        return [row[0] for row in self.rows]

    @property
    def queues(self) -> Counter[str]:
        """How many of the claimed rows are of each queue."""
        return Counter(row[1] for row in self.rows)

    def mark(self, ids: Sequence[int], *, token: UUID | None = None) -> dict[int, str]:
        """Mark rows as sent; return what could not be marked."""
        tokens = [token or self.token] * len(ids)
        query = "SELECT id, outcome FROM pfsup.mark_sent(%s, %s, %s)"
        return dict(self.conn.execute(query, (tokens, list(ids), [f"s {n}-1" for n in ids])).fetchall())

    def one(self, call: str, *params: Any) -> Any:
        """The single value that a call of a function returns."""
        row = self.conn.execute(f"SELECT * FROM pfsup.{call}".encode(), params).fetchone()
        return row[0] if row else None
