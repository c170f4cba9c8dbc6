"""One shift of dispatch: the loop, beside it the listener and the chores, and at its end the drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from psycopg_pool import AsyncConnectionPool

from ...config.values import Settings
from ...shared.db.connect import Connection
from ...shared.db.listen import Listener, channel
from ...shared.db.ready import drained_within, is_away, remedy, until_ready
from ...shared.log import Repeats
from ...shared.points import Points
from ...shared.sinks.redis_stream import RedisStreams
from ..contract import Link
from .breaker import State
from .chores import Chores
from .engine import Engine
from .outbox import Outbox

logger = logging.getLogger("pfsup.dispatch")

TELL_S = 1.0


class Shift:
    """Works from when the dependencies were there until the drain; what goes away meanwhile is waited for."""

    def __init__(
        self,
        settings: Settings,
        link: Link,
        *,
        pool: AsyncConnectionPool[Connection],
        outbox: Outbox,
        sink: RedisStreams,
        points: Points,
    ) -> None:
        self._settings = settings
        self._link = link
        self._pool = pool
        self._outbox = outbox
        self._points = points
        self._engine = Engine(settings, link, outbox=outbox, sink=sink, points=points)
        self._chores = Chores(settings, link.identity, outbox=outbox, sink=sink, newest=self._engine.newest)
        self._listener = Listener(
            settings.database,
            application_name=link.identity.application_name,
            wake=link.wake.wake,
            notify=self._notify,
        )
        self._repeats = Repeats(logger)
        self._told_at = 0.0

    async def work(self) -> None:
        """Begin, say that we are ready, loop until the drain, finish. Raises only for faults of ours."""
        if not await until_ready(self._link, self._begin):
            return
        beside = [asyncio.create_task(one) for one in self._beside()]
        for task in beside:
            task.add_done_callback(lambda _: self._link.wake.wake())
        self._link.ready()
        try:
            await self._loop(beside)
        finally:
            for task in beside:
                task.cancel()
        self._link.phase("draining")
        await self._finish()
        await asyncio.wait(beside, timeout=self._link.drain.left_s())
        self._tell()

    async def _begin(self) -> None:
        taken = await self._chores.begin(version("pfsup"))
        if taken:
            logger.info("took back %d claims of dispatchers that are gone", taken)

    def _beside(self) -> list[Coroutine[Any, Any, None]]:
        tasks: list[Coroutine[Any, Any, None]] = [self._wake_for_drain(), self._do_chores()]
        if self._settings.dispatch.wake == "notify":
            tasks.append(self._listener.run(self._link.drain))
        else:
            self._listener.state = "poll: configured"
        return tasks

    async def _loop(self, beside: list[asyncio.Task[None]]) -> None:
        self._link.phase("dispatching")
        while not self._link.drain.requested:
            _raise_faults(beside)
            try:
                pause_s = await self._engine.run_once()
            except Exception as error:
                if not is_away(error):
                    raise
                await self._wait_for_database(error)
                continue
            if time.monotonic() - self._told_at > TELL_S:
                self._tell()
            await self._engine.rest(pause_s)

    async def _wait_for_database(self, error: Exception) -> None:
        """Once it answers: drop the connections that broke, then give back and mark what was left open."""
        self._repeats.say(f"waiting for the database: {remedy(error)}")
        self._link.waiting(remedy(error))
        if await until_ready(self._link, self._resume):
            self._repeats.over("the database is back")

    async def _resume(self) -> None:
        await self._outbox.ask("version")
        async with asyncio.timeout(self._settings.database.connect_timeout):
            await self._pool.check()
        await self._engine.recall()

    async def _finish(self) -> None:
        try:
            await self._engine.finish()
        except Exception as error:
            if not is_away(error):
                raise
            logger.warning("could not give every claim back, their leases end by themselves: %s", remedy(error))

    async def _wake_for_drain(self) -> None:
        """The loop waits for the wake slot alone, so the drain sets it too. A database that does not answer may take up
        a quarter of the time twice: for what runs now, and for giving back.
        """
        await self._link.drain.wait()
        self._outbox.hasten(max(0.5, self._link.drain.left_s() / 4))
        self._link.wake.wake()

    async def _do_chores(self) -> None:
        """One round each scan interval. What is away is met and told by the loop; here it only ends the round."""
        while not await drained_within(self._link.drain, self._settings.dispatch.scan_interval):
            try:
                await self._one_round()
            except Exception as error:
                if not is_away(error):
                    raise
                logger.debug("chores stopped for now: %s", remedy(error))

    async def _one_round(self) -> None:
        await self._chores.beat()
        await self._engine.marks.write()
        if await self._chores.stage_restaged():
            self._link.wake.wake()
        if self._engine.breakers.broker.state is State.CLOSED and await self._chores.find_lost_streams():
            self._link.wake.wake()
        self._tell()
        await self._points.reach("chores")

    async def _notify(self) -> None:
        await self._outbox.ask("notify", {"channel": channel(self._settings.database)})

    def _tell(self) -> None:
        self._told_at = time.monotonic()
        self._link.report(
            self._engine.figures()
            | {
                "listen": self._listener.state,
                "requeued": self._chores.requeued,
                "watched_streams": self._chores.watched,
            }
        )


def _raise_faults(tasks: list[asyncio.Task[None]]) -> None:
    """What runs beside the loop ends with the drain; if it ended with a fault of ours, that is the loop's end too."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
