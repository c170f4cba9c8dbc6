"""One send task: a claimed batch becomes one pipeline, its answers become marks, charges and claims given back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...config.values import Settings
from ...shared.db.ready import broker_remedy
from ...shared.points import Points
from ...shared.sinks.redis_stream import Envelope, RedisStreams, stream_name
from ...shared.text import printable
from .marks import Marks
from .outbox import Batch, Mark, Outbox
from .verdict import Verdict, judge

logger = logging.getLogger("pfsup.dispatch")


@dataclass(slots=True)
class SendCount:
    """What became of claimed rows since the start."""

    claimed: int = 0
    sent: int = 0
    released: int = 0
    charged: int = 0
    dead: int = 0


class Sender:
    """Delivers batches. Raises only for the database; what Redis says is in the verdict."""

    def __init__(
        self,
        outbox: Outbox,
        sink: RedisStreams,
        marks: Marks,
        settings: Settings,
        *,
        points: Points,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outbox = outbox
        self._sink = sink
        self._marks = marks
        self._settings = settings
        self._points = points
        self._monotonic = monotonic
        self._streams: dict[str, str] = {}
        self.count = SendCount()

    async def deliver(self, batch: Batch, *, suspect: int | None = None) -> Verdict:
        """Send, mark what got through, charge what was refused alone, give the rest back."""
        await self._points.reach("claimed", batch=batch)
        if batch.expires - self._monotonic() <= self._settings.redis.socket_timeout:
            # The claim could end while the pipeline runs, and another dispatcher would send the rows a second time.
            await self._release(batch, batch.rows)
            return Verdict(returned=list(batch.rows))
        streams = [self.stream_of(row.queue) for row in batch.rows]
        results = await self._sink.send(streams, batch.rows, source=batch.source, claimed_at=batch.claimed_at)
        verdict = judge(batch.rows, results, suspect=suspect)
        await self._points.reach("sent", batch=batch, verdict=verdict)
        if verdict.sent:
            self.count.sent += len(verdict.sent)
            await self._marks.write(
                [
                    Mark(batch.token, row.id, f"{self.stream_of(row.queue)} {entry}", batch.expires)
                    for row, entry in verdict.sent
                ]
            )
            await self._points.reach("marked", batch=batch)
        if verdict.returned:
            await self._release(batch, verdict.returned)
        if verdict.refused:
            await self._charge(batch, verdict)
        return verdict

    def stream_of(self, queue: str) -> str:
        """The stream of a queue, remembered."""
        found = self._streams.get(queue)
        if found is None:
            found = self._streams[queue] = stream_name(self._settings, queue)
        return found

    async def _release(self, batch: Batch, rows: Sequence[Envelope]) -> None:
        self.count.released += await self._outbox.release(batch.token, [row.id for row in rows])

    async def _charge(self, batch: Batch, verdict: Verdict) -> None:
        errors = {row.id: _said(error) for row, error in verdict.refused}
        fates = await self._outbox.fail(batch.token, errors, most=self._settings.dispatch.max_send_attempts)
        self.count.charged += len(fates)
        for row_id, status in fates.items():
            if status == "dead":
                self.count.dead += 1
                logger.error("dispatch %d is dead: its last send was refused: %s", row_id, errors[row_id])


def _said(error: Exception) -> str:
    text = str(error)
    return printable(text, limit=500) if text else broker_remedy(error)
