"""A recovery domain as a child process: one bounded cycle at the start, then one each interval, until the drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import psycopg
from psycopg_pool import AsyncConnectionPool

from ..config.errors import SchemaError
from ..config.values import Domain, Settings
from ..shared.db.connect import Connection, aconnect, fetch
from ..shared.db.deadline import fetch_within
from ..shared.db.pool import open_pool
from ..shared.db.queries import Queries, load_queries
from ..shared.db.ready import drained_within, is_away, remedy, until_ready
from ..shared.db.version import check_version
from ..shared.drain import Drain
from ..shared.log import Repeats
from ..shared.points import NO_POINTS, Points
from ..shared.text import printable
from .contract import Link
from .looks import Looks
from .pause import pause_after_recovery
from .report import Report
from .session import Session, told

FORGET_LOOKS_S = 3600.0
MISSING = ("42P01", "3F000", "42703")  # undefined table, schema, column


class RunsOnce(Protocol):
    """What a loop repeats."""

    async def run_once(self, drain: Drain) -> Report: ...


class Making(Protocol):
    """How a domain makes what its loop repeats, when its pool is open. What must be closed goes on the stack."""

    async def __call__(self, session: Session, looks: Looks, link: Link, stack: AsyncExitStack) -> RunsOnce: ...


class Recovery:
    """The role (domains/contract.py) of every recovery domain.

    `make`: what it repeats. `look`: raises while what the domain needs beside pfsup's schema is not there. `missing`:
    the remedy for a table of its own that is not there.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        make: Making,
        look: Callable[[Connection], Awaitable[None]] | None = None,
        missing: str = "",
        points: Points = NO_POINTS,
    ) -> None:
        self._settings = settings
        self._name = name
        self._make = make
        self._look_further = look
        self._missing = missing
        self._points = points
        self._looks = Looks(self.domain.takeover_grace)
        self._shared = load_shared(settings)
        self._log = logging.getLogger(f"pfsup.recovery.{name}")
        self._repeats = Repeats(self._log)
        self._failures = Repeats(self._log)

    @property
    def domain(self) -> Domain:
        """This domain's section of the configuration."""
        return self._settings.domains[self._name]

    @property
    def looks(self) -> Looks:
        """Which lost runs wait for their second look."""
        return self._looks

    async def run(self, link: Link) -> None:
        """Cycle until the drain is asked for. What is away, a vanished table included, is waited for and told."""
        async with AsyncExitStack() as stack:
            if not await until_ready(link, lambda: self._look(link)):
                return
            pool = recovery_pool(self._settings, self._name, application_name=link.identity.application_name)
            await pool.open()
            stack.push_async_callback(pool.close, 1.0)
            session = Session(pool, self._settings.database, points=self._points)
            cycle = await self._make(session, self._looks, link, stack)
            pulse = asyncio.create_task(self._pulse(pool, link.drain))
            stack.callback(pulse.cancel)
            pulse.add_done_callback(lambda _: link.wake.wake())
            link.ready()
            await self._loop(link, cycle, session, pulse)

    async def _loop(self, link: Link, cycle: RunsOnce, session: Session, pulse: asyncio.Task[None]) -> None:
        while not link.drain.requested:
            if pulse.done():
                await pulse  # a fault of ours
            link.wake.clear()
            began = time.monotonic()
            await self._once(link, cycle, session)
            link.phase("idle")
            took_s = time.monotonic() - began
            await rest(link, pause_after_recovery(took_s=took_s, interval_s=self.domain.interval))

    async def _once(self, link: Link, cycle: RunsOnce, session: Session) -> None:
        """One cycle, told to the parent; a dependency that is away ends it and is told instead."""
        link.phase("recovering")
        try:
            if (why := await self._paused(session)) is not None:
                link.phase("paused")
                link.report({"paused": printable(why)})
                return
            report = await cycle.run_once(link.drain)
        except Exception as error:
            if not is_away(error):
                raise
            self._looks.broken()  # the pool may have a new connection before the next pulse
            text = self._remedy(error)
            self._repeats.say(f"waiting: {text}")
            link.waiting(text)
            return
        self._repeats.over("the domain goes on")
        link.waiting(None)
        if report.staged:
            link.wake_peer("dispatch")
        self._tell(link, report)
        await self._points.reach("cycle", report=report)

    async def _paused(self, session: Session) -> str | None:
        async with session.transaction() as tx:
            return (await tx.run(self._shared, "pause", {"domain": self._name}))[0]["why"]

    async def _look(self, link: Link) -> None:
        """On a connection of its own: a pool only says that none became free, not why."""
        database = self._settings.database
        conn = await aconnect(database, application_name=link.identity.application_name, autocommit=True)
        try:
            check_version((await fetch(conn, self._shared["version"]))[0][0], database.schema)
            if self._look_further is not None:
                try:
                    await self._look_further(conn)
                except psycopg.Error as error:
                    if error.sqlstate in MISSING:
                        raise SchemaError(self._missing or remedy(error)) from error
                    raise
        finally:
            await conn.close()

    def _remedy(self, error: Exception) -> str:
        if self._missing and isinstance(error, psycopg.Error) and error.sqlstate in MISSING:
            return self._missing
        return remedy(error)

    async def _pulse(self, pool: AsyncConnectionPool[Connection], drain: Drain) -> None:
        """While a run waits for its second look: ask often enough to know that the connection was never broken, and
        that this process never slept, between the two.
        """
        every_s = self._looks.pulse_s
        while not await drained_within(drain, every_s):
            self._looks.drop_older(max(FORGET_LOOKS_S, 10 * self.domain.interval))
            if self._looks.open and not await self._is_unbroken(pool, every_s):
                self._looks.broken()
            self._looks.awake()

    async def _is_unbroken(self, pool: AsyncConnectionPool[Connection], within_s: float) -> bool:
        try:
            async with pool.connection(within_s) as conn:
                await fetch_within(conn, self._shared["alive"], deadline_s=within_s)
        except Exception as error:
            if not is_away(error):
                raise
            return False
        return True

    def _tell(self, link: Link, report: Report) -> None:
        link.report(report.figures(self.domain.interval))
        if report.errors:
            first = printable(told(report.errors[0]), limit=300)
            self._failures.say(f"{len(report.errors)} candidates failed, the first with: {first}")
        else:
            self._failures.over("no candidate fails any more")
        decided = ", ".join(f"{count} {decision}" for decision, count in sorted(report.decisions.items()))
        self._log.log(
            logging.DEBUG if report.idle else logging.INFO,
            "examined %d: %s; locked %d, failed %d, oldest %.0f s%s",
            report.examined,
            decided or "nothing decided",
            report.locked,
            len(report.errors),
            report.oldest_s,
            ", more are there" if report.has_more else "",
        )


def recovery_pool(settings: Settings, name: str, *, application_name: str) -> AsyncConnectionPool[Connection]:
    """The domain's connections. A commit does not wait for the disk: what a crash of the server takes back is found
    stuck once more, and a later durable commit (a worker's effect, a settlement) makes all before it durable too.
    """
    pool = settings.domains[name].pool
    return open_pool(settings.database, pool, application_name=application_name, durable=False, seeks=True)


def load_shared(settings: Settings) -> Queries:
    """The statements that every domain shares."""
    return load_queries("pfsup.domains", "recovery.sql", schema=settings.database.schema)


async def rest(link: Link, pause_s: float) -> None:
    """Wait `pause_s` seconds, less when the domain is woken or the drain is asked for."""
    waits = [asyncio.ensure_future(link.wake.wait()), asyncio.ensure_future(link.drain.wait())]
    try:
        await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
