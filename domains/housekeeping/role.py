"""Housekeeping as a child process: one bounded pass each interval."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from psycopg_pool import AsyncConnectionPool

from ...config.values import Settings
from ...shared.db.connect import Connection, aconnect, fetch
from ...shared.db.deadline import fetch_within
from ...shared.db.pool import open_pool
from ...shared.db.queries import load_queries
from ...shared.db.ready import drained_within, is_away, remedy, until_ready
from ...shared.drain import Drain
from ...shared.log import Repeats
from ...shared.sinks.redis_stream import stream_name
from ...shared.sinks.redis_wire import Wires
from ..contract import Link
from .streams import StreamCleaner

logger = logging.getLogger("pfsup.housekeeping")

# At most this many statements of `batch_size` rows of one kind in a pass; the rest waits for the next.
STATEMENTS_A_PASS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one pass did. `complete` is False when a bound or the drain ended it early."""

    rows: int = 0
    audit_lines: int = 0
    others: int = 0
    entries: int = 0
    complete: bool = True
    health: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def idle(self) -> bool:
        """True when there was nothing to do."""
        return not (self.rows or self.audit_lines or self.others or self.entries)


class Housekeeping:
    """The role (domains/contract.py). Retention, streams of finished tasks, the table's health."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._queries = load_queries("pfsup.domains.housekeeping", "queries.sql", schema=settings.database.schema)
        self._after = 0
        self._queues = set(settings.queues)

    async def run(self, link: Link) -> None:
        """A pass at the start, then one each interval, until the drain. What is away is waited for."""
        repeats = Repeats(logger)
        async with AsyncExitStack() as stack:
            if not await until_ready(link, lambda: self._look(link)):
                return
            pool, wires = await self._open(link, stack)
            link.ready()
            while not link.drain.requested:
                link.phase("cleaning")
                try:
                    self._told(link, await self.run_once(pool, wires, link.drain))
                except Exception as error:
                    if not is_away(error):
                        raise
                    repeats.say(f"pass ended early: {remedy(error)}")
                    link.waiting(remedy(error))
                else:
                    repeats.over("passes end well again")
                    link.waiting(None)
                link.phase("idle")
                await drained_within(link.drain, self._settings.housekeeping.interval)

    async def run_once(self, pool: AsyncConnectionPool[Connection], wires: Wires, drain: Drain) -> Report:
        """One pass; checks for the drain between its statements. Raises when a dependency is away."""
        keeping = self._settings.housekeeping
        rows, complete = await self._prune_rows(pool, drain)
        audit_lines = await self._prune_until_short(pool, "prune_audit", keeping.keep_audit, drain)
        others = await self._prune_until_short(pool, "prune_rest", keeping.keep_consumed, drain)
        entries = await self._clean_streams(pool, wires, drain)
        health = await self._health(pool)
        done = complete and not drain.requested
        return Report(rows=rows, audit_lines=audit_lines, others=others, entries=entries, complete=done, health=health)

    async def _open(self, link: Link, stack: AsyncExitStack) -> tuple[AsyncConnectionPool[Connection], Wires]:
        name = link.identity.application_name
        pool = open_pool(self._settings.database, self._settings.housekeeping.pool, application_name=name)
        await pool.open()
        stack.push_async_callback(pool.close, 1.0)
        wires = Wires(self._settings.redis, client_name=name, most=1)
        stack.push_async_callback(wires.close)
        return pool, wires

    async def _look(self, link: Link) -> None:
        database = self._settings.database
        conn = await aconnect(database, application_name=link.identity.application_name, autocommit=True)
        try:
            await fetch(conn, self._queries["version"])
        finally:
            await conn.close()

    async def _prune_rows(self, pool: AsyncConnectionPool[Connection], drain: Drain) -> tuple[int, bool]:
        """Walk the primary key from where the last pass stopped; True when it came to rows that are too young."""
        keeping, total = self._settings.housekeeping, 0
        for _ in range(STATEMENTS_A_PASS):
            if drain.requested:
                return total, False
            asked = {"after": self._after, "batch": keeping.batch_size, "keep_s": keeping.keep_consumed}
            deleted, last_id = (await self._ask(pool, "prune_ended", asked))[0]
            total += deleted
            self._after = last_id or 0
            if last_id is None:
                return total, True
        return total, False

    async def _prune_until_short(
        self, pool: AsyncConnectionPool[Connection], name: str, keep_s: float, drain: Drain
    ) -> int:
        batch, total = self._settings.housekeeping.batch_size, 0
        for _ in range(STATEMENTS_A_PASS):
            if drain.requested:
                break
            deleted = (await self._ask(pool, name, {"batch": batch, "keep_s": keep_s}))[0][0]
            total += deleted
            if deleted < batch:
                break
        return total

    async def _clean_streams(self, pool: AsyncConnectionPool[Connection], wires: Wires, drain: Drain) -> int:
        async def ended_of(ids: list[int]) -> set[int]:
            return {row[0] for row in await self._ask(pool, "ended_of", {"ids": ids})}

        cleaner = StreamCleaner(wires, group=self._settings.redis.group, ended_of=ended_of)
        self._queues |= {row[0] for row in await self._ask(pool, "known_queues")}
        removed = 0
        for stream in sorted({stream_name(self._settings, queue) for queue in self._queues}):
            if drain.requested:
                break
            removed += await cleaner.clean(stream)
        return removed

    async def _health(self, pool: AsyncConnectionPool[Connection]) -> dict[str, Any]:
        names = ("table_bytes", "index_bytes", "live_rows", "dead_rows", "vacuumed_at", "notification_queue")
        found = await self._ask(pool, "table_health")
        return dict(zip(names, found[0], strict=True)) if found else {}

    async def _ask(
        self, pool: AsyncConnectionPool[Connection], name: str, params: Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        database = self._settings.database
        deadline_s = database.statement_timeout + database.connect_timeout
        async with pool.connection() as conn:
            return await fetch_within(conn, self._queries[name], params, deadline_s=deadline_s)

    def _told(self, link: Link, report: Report) -> None:
        link.report(asdict(report))
        level = logging.DEBUG if report.idle else logging.INFO
        logger.log(
            level,
            "removed %d rows, %d audit lines, %d other lines, %d stream entries",
            report.rows,
            report.audit_lines,
            report.others,
            report.entries,
        )
