"""The outbox as dispatch uses it: each method is one statement and transaction, with a deadline on this side too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from ...config.values import Database
from ...shared.db.connect import Connection
from ...shared.db.deadline import fetch_within, hang_up
from ...shared.db.queries import Queries
from ...shared.sinks.redis_stream import Envelope

_ROW_WIDTH = len(Envelope._fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one claim brought. `expires` is on the monotonic clock, taken before the claim was asked for."""

    token: UUID
    rows: tuple[Envelope, ...]
    source: str
    claimed_at: str
    expires: float
    full: bool  # there may be more: the article's HasMore
    wait_s: float | None  # until the next row is due; None: none is, or the batch is full
    lag_s: float | None  # how long the oldest of these rows has been due
    limited: bool  # a queue was passed over because max_outstanding is reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one claim may take: see claim_due in 50_dispatch.sql."""

    batch: int
    closed: tuple[str, ...] = ()
    room: Mapping[str, int] | None = None
    oldest: bool = False
    only: str | None = None


class Mark(NamedTuple):
    """One row to be marked as sent: its claim's token, its entry, and until when (monotonic) the claim lives."""

    token: UUID
    id: int
    ref: str
    expires: float


class Outbox:
    """Claims, marks, gives back. Raises psycopg's errors or PoolTimeout when the database is away."""

    def __init__(
        self,
        pool: AsyncConnectionPool[Connection],
        queries: Queries,
        database: Database,
        *,
        claimed_by: str,
        lease_s: float,
        grace_s: float,
        inline: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._queries = queries
        # The server's own limit comes first; this one is for a server that says nothing at all.
        self._deadline_s = database.statement_timeout + database.connect_timeout
        self._patience_s = database.connect_timeout
        self._busy: set[Connection] = set()
        self._fixed: dict[str, Any] = {"claimed_by": claimed_by, "lease_s": lease_s, "inline": inline}
        self._lease_s = lease_s
        self._grace_s = grace_s  # recovery looks at a sent row after this
        self._monotonic = monotonic

    async def claim(self, limits: Limits, *, token: UUID | None = None) -> Batch:
        """Lease due rows within the limits. `token` lets the caller give them back though the answer got lost."""
        token = token or uuid4()
        expires = self._monotonic() + self._lease_s
        found = await self._fetch(
            "claim",
            self._fixed
            | {
                "token": token,
                "batch": limits.batch,
                "closed": list(limits.closed),
                "room": Jsonb(limits.room or {}),
                "oldest": limits.oldest,
                "only_queues": [limits.only] if limits.only else None,
            },
        )
        claimed_at, source, wait_s, lag_s, limited = found.pop()[_ROW_WIDTH:]
        return Batch(
            token=token,
            rows=tuple(Envelope._make(row[:_ROW_WIDTH]) for row in found),
            source=source,
            claimed_at=claimed_at,
            expires=expires,
            full=len(found) >= limits.batch,
            wait_s=wait_s,
            lag_s=None if lag_s is None else float(lag_s),
            limited=limited,
        )

    async def mark(self, marks: Sequence[Mark]) -> dict[int, str]:
        """Mark rows as sent; returns what could not be marked: id → `skipped` or `lost`."""
        rows = await self._fetch(
            "mark",
            {
                "tokens": [m.token for m in marks],
                "ids": [m.id for m in marks],
                "refs": [m.ref for m in marks],
                "grace_s": self._grace_s,
            },
        )
        return dict(rows)

    async def release(self, token: UUID, ids: Sequence[int] | None) -> int:
        """Give claims back, uncharged; `ids` None: all that this token holds. Returns how many."""
        return int((await self._fetch("release", {"token": token, "ids": None if ids is None else list(ids)}))[0][0])

    async def fail(self, token: UUID, errors: Mapping[int, str], *, most: int) -> dict[int, str]:
        """Charge rows that were refused alone; returns id → status: `pending` (backs off) or `dead`."""
        return dict(
            await self._fetch(
                "fail", {"token": token, "ids": list(errors), "errors": list(errors.values()), "most": most}
            )
        )

    async def ask(self, name: str, params: Mapping[str, Any] | None = None) -> list[TupleRow]:
        """Run one of the rarer statements of queries.sql by its name."""
        return await self._fetch(name, params)

    def hasten(self, within_s: float) -> None:
        """Drain: what runs now has `within_s` seconds left, what comes later as much each."""
        self._deadline_s = min(self._deadline_s, within_s)
        loop = asyncio.get_running_loop()
        for conn in self._busy:
            loop.call_later(within_s, self._hang_up, conn)

    def _hang_up(self, conn: Connection) -> None:
        if conn in self._busy:
            hang_up(conn)

    async def _fetch(self, name: str, params: Mapping[str, Any] | None) -> list[TupleRow]:
        async with self._pool.connection(timeout=min(self._patience_s, self._deadline_s)) as conn:
            self._busy.add(conn)
            try:
                return await fetch_within(conn, self._queries[name], params, deadline_s=self._deadline_s)
            finally:
                self._busy.discard(conn)
