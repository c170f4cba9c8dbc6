"""The loop: take a slot, clear the wake, claim, start the send, and only rest when there was not more (seed 000)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID, uuid4

from ...config.values import Settings
from ...shared.backoff import Backoff
from ...shared.db.ready import is_away, remedy
from ...shared.log import Repeats
from ...shared.points import Points
from ...shared.sinks.redis_stream import RedisStreams
from ..contract import Link
from ..pause import pause_after_dispatch
from .breaker import Breakers, State
from .marks import Marks
from .outbox import Batch, Limits, Outbox
from .send import Sender
from .verdict import Verdict

logger = logging.getLogger("pfsup.dispatch")


class Engine:
    """Moves due rows to the broker until the drain is asked for.

    At most `max_in_flight` send tasks exist at any time: a slot is taken before the claim, so that what waits, waits in
    the table and not in memory.
    """

    def __init__(
        self,
        settings: Settings,
        link: Link,
        *,
        outbox: Outbox,
        sink: RedisStreams,
        points: Points,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatch = settings.dispatch
        self._link = link
        self._outbox = outbox
        self._sink = sink
        self._points = points
        self._monotonic = monotonic
        self.marks = Marks(outbox, monotonic)
        self.sender = Sender(outbox, sink, self.marks, settings, points=points, monotonic=monotonic)
        self.breakers = Breakers(_new_backoff)
        self.newest: dict[str, str] = {}  # queue → the newest entry that we wrote
        self.lag_s: float | None = None
        self._caps = {name: q.max_outstanding for name, q in settings.queues.items() if q.max_outstanding}
        self._slots = asyncio.Semaphore(self._dispatch.max_in_flight)
        self._flying: dict[asyncio.Task[None], Batch] = {}
        self._suspect: int | None = None
        self._unanswered: set[UUID] = set()
        self._fault: BaseException | None = None
        self._repeats = Repeats(logger)

    @property
    def in_flight(self) -> int:
        """Send tasks in existence."""
        return len(self._flying)

    async def run_once(self) -> float:
        """One pass: claim at most one batch and start sending it. Returns the pause before the next pass, in seconds.

        Raises when the database is away.
        """
        if self._fault is not None:
            raise self._fault
        if self.breakers.broker.state is not State.CLOSED:
            return await self._try_broker()
        for queue in self.breakers.due(self._monotonic()):
            await self._try_stream(queue)
        await self._slots.acquire()
        started = False
        try:
            self._link.wake.clear()  # before the scan: what is committed after this line wakes us again
            if self._link.drain.requested or self.breakers.broker.state is not State.CLOSED:
                return 0.0  # while we waited for the slot
            batch = await self._claim(Limits(batch=self._dispatch.batch_size, closed=self.breakers.closed_queues))
            await self._points.reach("scanned", rows=len(batch.rows), in_flight=self.in_flight)
            if batch.rows and not self._link.drain.requested:
                started = self._start(batch)
            elif batch.rows:
                await self._outbox.release(batch.token, [row.id for row in batch.rows])
        finally:
            if not started:
                self._slots.release()
        return pause_after_dispatch(
            full=batch.full,
            wait_s=batch.wait_s,
            scan_interval_s=self._dispatch.scan_interval,
            retry_in_s=self.breakers.retry_in_s(self._monotonic()),
            limited=batch.limited,
        )

    async def rest(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds, less if the wake slot is set."""
        if pause_s <= 0:
            return
        await self._points.reach("resting", pause_s=pause_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._link.wake.wait()
        except TimeoutError:
            pass

    async def recall(self) -> None:
        """After the database was away: write owed marks, then give back what else those claims may still hold."""
        await self.marks.write()
        for token in self._unanswered - self.marks.tokens:
            await self._outbox.release(token, None)
            self._unanswered.discard(token)

    async def finish(self) -> None:
        """Drain: let what is in flight end, write owed marks, give the rest back. Sends get half of the time left."""
        if self._flying:
            await asyncio.wait(list(self._flying), timeout=self._link.drain.left_s() / 2)
        late = dict(self._flying)
        for task in late:
            task.cancel()
        if late:
            # Their statements are hung up on by now; whatever else they wait for shall not hold up the rest.
            await asyncio.wait(list(late), timeout=0.5)
        await self.recall()
        for batch in late.values():
            await self._outbox.release(batch.token, [row.id for row in batch.rows])

    def figures(self) -> dict[str, Any]:
        """What `status` shows: counts since the start, and how things stand."""
        broker = self.breakers.broker
        return {
            **asdict(self.sender.count),
            "marks_skipped": self.marks.count.skipped,
            "marks_lost": self.marks.count.lost,
            "marks_owed": len(self.marks.owed),
            "in_flight": self.in_flight,
            "lag_s": self.lag_s,
            "breaker": broker.state.value,
            "breaker_reason": broker.reason,
            "streams_left_alone": {queue: b.reason for queue, b in self.breakers.streams.items()},
            "wakes": self._link.wake.wakes,
        }

    async def settled(self) -> None:
        """Wait until no send task exists."""
        while self._flying:
            await asyncio.wait(list(self._flying))

    async def _claim(self, limits: Limits) -> Batch:
        token = uuid4()
        room = self._room() if self._caps else None
        try:
            batch = await self._outbox.claim(replace(limits, room=room), token=token)
        except BaseException:
            self._unanswered.add(token)
            raise
        self.sender.count.claimed += len(batch.rows)
        self.lag_s = batch.lag_s
        return batch

    def _room(self) -> dict[str, int]:
        """The caps, less what is in flight and therefore not yet `sent` in the table."""
        flying = Counter(row.queue for batch in self._flying.values() for row in batch.rows)
        return {queue: max(0, cap - flying[queue]) for queue, cap in self._caps.items()}

    def _start(self, batch: Batch) -> bool:
        task = asyncio.create_task(self._send(batch))
        self._flying[task] = batch
        task.add_done_callback(self._landed)
        return True

    def _landed(self, task: asyncio.Task[None]) -> None:
        del self._flying[task]
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error
            self._link.wake.wake()

    async def _send(self, batch: Batch, *, trial: bool = False) -> None:
        """Deliver one batch and tell the breakers. Never raises for the database: the next claim will meet it too."""
        try:
            verdict = await self.sender.deliver(batch, suspect=self._suspect if trial else None)
        except Exception as error:
            if not is_away(error):
                raise
            self._unanswered.add(batch.token)
            self._repeats.say(f"cannot write what became of a batch yet: {remedy(error)}")
            self._link.wake.wake()
            return
        for row, entry in verdict.sent:
            self.newest[row.queue] = entry
        self._note(verdict, trial=trial)

    def _note(self, verdict: Verdict, *, trial: bool) -> None:
        now = self._monotonic()
        if verdict.broker is not None:
            self._suspect = verdict.hung_up_on
            self._broker_failed(now, remedy(verdict.broker))
        elif trial:
            self._suspect = None
        for queue, error in verdict.streams.items():
            said = remedy(error)
            if self.breakers.stream_failed(queue, now, said):
                logger.warning("stream of queue %s is left alone for now, its rows wait: %s", queue, said)

    def _broker_failed(self, now: float, said: str) -> None:
        if self.breakers.broker.failed(now, said):
            self._link.wake.wake()
        self._link.waiting(said)  # each time: a database that came back meanwhile has taken its own reason away
        self._repeats.say(f"the broker takes nothing, rows wait uncharged: {said}")

    async def _try_broker(self) -> float:
        """The broker is left alone: when its time has come ask for a sign of life, then send 1, 2, 4 rows, then all."""
        breaker = self.breakers.broker
        await self.settled()
        left_s = breaker.retry_at - self._monotonic()
        if breaker.state is State.OPEN and left_s > 0:
            self._link.wake.clear()
            return left_s
        try:
            await self._sink.ping()
        except Exception as error:
            if not is_away(error):
                raise
            breaker.begin_trial()
            self._broker_failed(self._monotonic(), remedy(error))
            return max(0.0, breaker.retry_at - self._monotonic())
        breaker.begin_trial()
        await self._points.reach("broker answers")
        while breaker.state is State.TRIAL and not self._link.drain.requested:
            limits = Limits(batch=breaker.trial_size, closed=self.breakers.closed_queues, oldest=True)
            if not await self._trial(limits):
                breaker.close()
            else:
                breaker.passed()
        if breaker.state is State.CLOSED:
            self._link.waiting(None)
            self._repeats.over("the broker takes entries again")
        return max(0.0, breaker.retry_at - self._monotonic()) if breaker.state is State.OPEN else 0.0

    async def _try_stream(self, queue: str) -> None:
        """One small batch for a stream that was left alone; none due means that there is nothing to be careful with."""
        breaker = self.breakers.streams[queue]
        if breaker.state is State.OPEN:
            breaker.begin_trial()
        if not await self._trial(Limits(batch=breaker.trial_size, oldest=True, only=queue)):
            del self.breakers.streams[queue]
        elif self.breakers.stream_passed(queue):
            logger.info("stream of queue %s takes entries again", queue)

    async def _trial(self, limits: Limits) -> int:
        """Claim and send a small batch, and wait for its verdict. Returns how many rows there were."""
        async with self._slots:
            if self._link.drain.requested:
                return 0
            batch = await self._claim(limits)
            if batch.rows:
                task = asyncio.create_task(self._send(batch, trial=True))
                self._flying[task] = batch
                try:
                    await task
                finally:
                    del self._flying[task]
            return len(batch.rows)


def _new_backoff() -> Backoff:
    return Backoff(0.1, 0.5, rng=random.Random())  # noqa: S311 - spreads retries, guards nothing
