"""What dispatch does beside the loop, once a scan interval: wishes, owed marks, lost streams, its sign of life.

A task of its own with connections of the same pool: nothing here stands in front of a claim.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from uuid import UUID

from psycopg.types.json import Jsonb

from ...config.paths import lock_file
from ...config.values import Settings
from ...shared.sinks.redis_stream import RedisStreams, StreamFacts, stream_name
from ..contract import Identity
from .outbox import Outbox
from .streams import Known, Loss, find_loss, learn, order

logger = logging.getLogger("pfsup.dispatch")

BEAT_S = 10.0


class Chores:
    """Raises psycopg's and redis-py's errors when a dependency is away; the next call goes on where this one was."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        outbox: Outbox,
        sink: RedisStreams,
        newest: Mapping[str, str],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._outbox = outbox
        self._sink = sink
        self._newest = newest
        self._monotonic = monotonic
        self._known: dict[str, Known] = {}
        self._last_key = ""
        self._beat_at = 0.0
        self.requeued = 0

    async def begin(self, version: str) -> int:
        """Register this boot, take back the claims of the dead, write the actors' policies, learn the streams.

        Returns how many claims were taken back.
        """
        me = {
            "boot_id": UUID(self._identity.boot_id),
            "name": self._identity.instance,
            "host": whereabouts(self._settings),
            "pid": os.getppid(),
            "version": version,
        }
        await self._outbox.ask("register", me)
        taken = await self._outbox.ask("take_back", {"boot_id": me["boot_id"], "generation": self._identity.generation})
        policies = {name: asdict(actor) for name, actor in self._settings.actors.items()}
        if policies:
            await self._outbox.ask("sync_actors", {"actors": Jsonb(policies)})
        for queue, newest in await self._outbox.ask("sent_queues"):
            self._known.setdefault(queue, Known(newest or "0-0"))
        self._beat_at = self._monotonic() + BEAT_S
        return int(taken[0][0])

    @property
    def watched(self) -> int:
        """How many streams have been looked at and are in order."""
        return sum(known.entries_added is not None for known in self._known.values())

    async def beat(self) -> None:
        """Renew this boot's sign of life every BEAT_S."""
        if self._monotonic() >= self._beat_at:
            await self._outbox.ask("beat", {"boot_id": UUID(self._identity.boot_id)})
            self._beat_at = self._monotonic() + BEAT_S

    async def stage_restaged(self) -> int:
        """Give wishes whose envelope ended without seeing them an envelope of their own; returns how many."""
        staged, last_key = (await self._outbox.ask("stage_restaged", {"after": self._last_key}))[0]
        self._last_key = last_key or ""
        return int(staged)

    async def find_lost_streams(self) -> int:
        """Send again what lay in streams that are gone; returns how many rows became due."""
        before = self._merged()
        if not before:
            return 0
        requeued = 0
        for queue, facts in (await self._ask(before)).items():
            if find_loss(before[queue], facts) is None:
                self._known[queue] = learn(before[queue], facts)
            else:
                requeued += await self._requeue(queue, before[queue])
        return requeued

    def _merged(self) -> dict[str, Known]:
        """What is known now, with what was written since: taken before Redis is asked, so that it cannot be ahead."""
        for queue, entry in self._newest.items():
            known = self._known.get(queue, Known())
            self._known[queue] = Known(max(known.newest, entry, key=order), known.entries_added)
        return dict(self._known)

    async def _ask(self, known: Mapping[str, Known]) -> dict[str, StreamFacts]:
        names = {stream_name(self._settings, queue): queue for queue in known}
        return {names[facts.stream]: facts for facts in await self._sink.facts(names)}

    async def _requeue(self, queue: str, known: Known) -> int:
        """Look again with the database's time taken first, so that nothing sent after the loss is taken for lost."""
        sent_before = (await self._outbox.ask("clock"))[0][0]
        facts = (await self._ask({queue: known})).get(queue)
        loss = facts and find_loss(known, facts)
        if facts is None or loss is None:
            return 0
        self._sink.forget_group(facts.stream)
        return await self._send_again(queue, facts, loss, sent_before)

    async def _send_again(self, queue: str, facts: StreamFacts, loss: Loss, sent_before: object) -> int:
        asked = {"queue": queue, "sent_before": sent_before, "keep_from": loss.keep_from, "keep_to": loss.keep_to}
        total = 0
        while moved := (await self._outbox.ask("requeue_lost", asked))[0][0]:
            total += moved
        self.requeued += total
        # Forget what was: entries written while we looked are learned at the next look.
        self._known[queue] = Known(facts.last_id, facts.entries_added) if facts.exists else Known()
        if total:
            logger.warning("queue %s: %s; %d rows are sent again", queue, loss.why, total)
        return total


def whereabouts(settings: Settings) -> str:
    """Host and lock file: two boots with the same whereabouts cannot both live, so the older one's claims are free."""
    return f"{socket.gethostname()}:{lock_file(settings.supervisor)}"
