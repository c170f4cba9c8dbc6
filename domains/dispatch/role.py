"""Dispatch as a child process: it waits for what it needs, then works a shift until the drain."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ...config.values import Domain, Settings
from ...shared.db.connect import aconnect, fetch
from ...shared.db.pool import open_pool
from ...shared.db.queries import load_queries
from ...shared.db.ready import until_ready
from ...shared.db.version import check_version
from ...shared.points import NO_POINTS, Points
from ...shared.sinks.redis_stream import RedisStreams
from ..contract import Link
from .outbox import Outbox
from .shift import Shift


class Dispatch:
    """The role (domains/contract.py). `points` are reached by name in the real loop; tests observe or hold it there."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        self._settings = settings
        self._name = name
        self._points = points
        self._queries = load_queries("pfsup.domains.dispatch", "queries.sql", schema=settings.database.schema)

    async def run(self, link: Link) -> None:
        """Dispatch until the drain is asked for. A dependency that is away is waited for; only faults of ours raise."""
        settings, me = self._settings, link.identity
        async with AsyncExitStack() as stack:
            sink = RedisStreams(settings.redis, client_name=me.application_name)
            stack.push_async_callback(sink.close)

            async def look() -> None:
                await self._look_at_database(me.application_name)
                await sink.ping()

            if not await until_ready(link, look):
                return
            pool = open_pool(
                settings.database, settings.dispatch.pool, application_name=me.application_name, durable=False
            )
            await pool.open()
            stack.push_async_callback(pool.close, 1.0)
            outbox = Outbox(
                pool,
                self._queries,
                settings.database,
                claimed_by=me.claimed_by,
                lease_s=settings.dispatch.claim_lease,
                grace_s=settings.domains.get("envelope", Domain()).sent_grace,
                inline=settings.redis.payload == "inline",
            )
            await Shift(settings, link, pool=pool, outbox=outbox, sink=sink, points=self._points).work()

    async def _look_at_database(self, application_name: str) -> None:
        """On a connection of its own: a pool only says that none became free, not why."""
        conn = await aconnect(self._settings.database, application_name=application_name, autocommit=True)
        try:
            found = (await fetch(conn, self._queries["version"]))[0][0]
        finally:
            await conn.close()
        check_version(found, self._settings.database.schema)
