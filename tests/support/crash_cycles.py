"""Recovery without a supervisor beside workers that are lost: cycles by hand, or in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import uvloop
from pfsup.config import values
from pfsup.domains.report import Report
from pfsup.shared.points import NO_POINTS, Points

from .crash_workers import KilledAt
from .database import Database
from .recovery import Domain, Outbox, domain, envelopes
from .rows import Rows, rows_of

KINDS = ("delivery", "local_edit", "image_session", "workflow", "agent")
# A lease that has ended stays as it is: recovery believes what it sees twice.
PAST = "clock_timestamp() - interval '1 minute'"


def _losing(table: str, change: str, where: str) -> str:
    """A statement over rows that nobody has locked: a worker that stands still in a transaction keeps its lease."""
    free = f"SELECT id FROM {table} WHERE {where} FOR NO KEY UPDATE SKIP LOCKED"
    return f"UPDATE {table} SET {change} WHERE id IN ({free})"


ENVELOPES = "pfsup.async_dispatches"
LEASED = "lease_expires_at > clock_timestamp()"
LOOK_NOW = _losing(ENVELOPES, f"check_at = {PAST}", "status IN ('sent', 'running')")
LONG_SENT = _losing(ENVELOPES, f"sent_at = {PAST} - interval '1 hour'", "status = 'sent'")
LOSSES = (
    _losing(ENVELOPES, f"lease_expires_at = {PAST}", f"status = 'running' AND {LEASED}"),
    LOOK_NOW,
    LONG_SENT,
    _losing("productflow.workflow_runs", f"lease_expires_at = {PAST}", LEASED),
    _losing("productflow.agent_turns", f"lease_expires_at = {PAST}", LEASED),
)


@dataclass(slots=True, kw_only=True)
class Recovering:
    """Recovery's domains by kind, on one loop that stands still between the calls, so that the test may fork."""

    runner: asyncio.Runner
    stack: AsyncExitStack
    database: Database
    open: dict[str, Domain | Outbox] = field(default_factory=dict[str, Domain | Outbox])

    def cycle(self, kind: str) -> Report:
        """One cycle of the domain; its failures fail the test."""
        report = self.runner.run(self._cycle(kind))
        assert not report.errors, report.errors
        return report

    async def _cycle(self, kind: str) -> Report:
        if kind not in self.open:
            self.open[kind] = await self.stack.enter_async_context(recovering(self.database, kind))
        found = self.open[kind]
        report = await found.run()
        found.clock.pass_(found.looks.grace_s + 1)
        return report


def recovering(database: Database, kind: str, *, points: Points = NO_POINTS, **section: Any) -> Any:
    """The domain of this kind (`envelope`: with the others there to own their actors), as an async context."""
    if kind == "envelope":
        redis = replace(values.Redis(), url=database.redis_url)
        return envelopes(database, redis=redis, others=KINDS, points=points, **section)
    return domain(database, kind, points=points, **section)


@contextmanager
def recovery_of(database: Database) -> Generator[Recovering]:
    """Recovery on a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        try:
            yield Recovering(runner=runner, stack=stack, database=database)
        finally:
            runner.run(stack.aclose())


def look_twice(database: Database, kind: str, points: KilledAt) -> None:
    """Recovery in a process of its own: a cycle that looks at lost runs for the first time, and one that takes them."""
    uvloop.run(_look_twice(database, kind, points))


async def _look_twice(database: Database, kind: str, points: KilledAt) -> None:
    with rows_of(database) as rows:
        async with recovering(database, kind, points=points) as found:
            await found.run()
            rows.awake()
            rows.all(LOOK_NOW)
            found.clock.pass_(found.looks.grace_s + 1)
            assert not (await found.run()).errors


def cycle_on(database: Database, kind: str) -> None:
    """Recovery in a process of its own: one cycle after the other, until killed. It takes every worker for lost that
    has not prolonged its lease between two of them.
    """

    async def cycle() -> None:
        with rows_of(database) as rows:
            await cycles(rows)

    async def cycles(rows: Rows) -> None:
        async with recovering(database, kind) as found:
            while True:
                for statement in LOSSES:
                    rows.all(statement)
                rows.awake()
                assert not (await found.run()).errors
                found.clock.pass_(found.looks.grace_s + 1)

    uvloop.run(cycle())
