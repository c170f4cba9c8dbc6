"""One stay of a worker at its streams: from the first read to the last message ended."""

from __future__ import annotations

import asyncio
import logging
import time

from redis import exceptions

from ...config.errors import ProtocolError
from ..backoff import Backoff
from ..db.ready import drained_within, remedy
from ..drain import Drain
from ..log import Repeats
from .ender import Ender
from .message import Message, parse
from .reader import Entry, Place, Reader
from .runner import Runner
from .verdicts import Fate

log = logging.getLogger("pfsup.worker")

# After the drain's deadline: time for runs that were told to stop to settle, and for the last messages to be ended.
GRACE_S = 3.0


class Session:
    """Reads only as many messages as there are free places, and takes each to its end.

    Entries that nobody ended for `sweep_idle_s` seconds are taken over, every half of that time.
    """

    def __init__(
        self, runner: Runner, reader: Reader, ender: Ender, *, drain: Drain, concurrency: int, sweep_idle_s: float
    ) -> None:
        self._runner = runner
        self._reader = reader
        self._ender = ender
        self._drain = drain
        self._concurrency = concurrency
        self._sweep_idle_s = sweep_idle_s
        self._next_sweep = time.monotonic() + sweep_idle_s / 2
        self._in_hand: dict[Place, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._broker = Repeats(log)
        self._garbage = Repeats(log)

    def __repr__(self) -> str:
        return f"<Session in_hand={len(self._in_hand)}/{self._concurrency} {self._drain!r}>"

    async def run(self) -> None:
        """Work until the drain, then finish what began; at the drain's deadline what still runs is told to stop."""
        ending = asyncio.create_task(self._ender.run(), name="ender")
        try:
            await self._feed()
            await self._finish()
        finally:
            for task in self._in_hand.values():
                task.cancel()
            self._ender.close(GRACE_S)
            await ending
            await self._leave()

    async def _feed(self) -> None:
        backoff = Backoff(0.1, 5.0)
        while await self._has_room():
            try:
                entries = await self._read(self._concurrency - len(self._in_hand))
            except (exceptions.RedisError, OSError) as error:
                self._broker.say(f"cannot read messages: {remedy(error)}")
                # Whether the lost answer held entries nobody knows: what is pending under our name is looked at again.
                self._reader.look_back()
                await drained_within(self._drain, backoff.next_s())
                continue
            backoff.reset()
            self._broker.over("messages are read again")
            for entry in entries:
                self._take(entry)

    async def _has_room(self) -> bool:
        """Wait for a free place; False once a drain is asked for."""
        while len(self._in_hand) >= self._concurrency and not self._drain.requested:
            self._freed.clear()
            waits = [asyncio.ensure_future(self._freed.wait()), asyncio.ensure_future(self._drain.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        return not self._drain.requested

    async def _read(self, free: int) -> list[Entry]:
        if time.monotonic() < self._next_sweep:
            return await self._reader.read(free)
        self._next_sweep = time.monotonic() + self._sweep_idle_s / 2
        return await self._reader.sweep(free, idle_s=self._sweep_idle_s)

    def _take(self, entry: Entry) -> None:
        """Take an entry in hand, unless it is there already or nothing can be done with it."""
        stream, entry_id, fields = entry
        if (stream, entry_id) in self._in_hand:
            return
        if not fields:  # deleted while it was pending: only its mark in the group is left
            self._ender.add((stream, entry_id))
            return
        try:
            message = parse(stream, entry_id, fields)
        except ProtocolError as error:
            self._garbage.say(f"{error}; it is left in the stream")
            return
        if not self._runner.knows(message):
            return
        task = asyncio.create_task(self._carry(message), name=f"dispatch {message.dispatch_id}")
        self._in_hand[message.place] = task

    async def _carry(self, message: Message) -> None:
        try:
            if await self._runner.carry(message) is Fate.END:
                self._ender.add(message.place)
        except Exception:
            log.exception("dispatch %d: a fault of pfsup's; its message is left in the stream", message.dispatch_id)
        finally:
            self._in_hand.pop(message.place, None)
            self._freed.set()

    async def _finish(self) -> None:
        """Wait for what is in hand until the drain's deadline; then hurry it, and give up on what cannot be stopped."""
        while self._in_hand and (left_s := self._drain.left_s()) > 0:
            # In short waits: a second signal brings the deadline nearer.
            await asyncio.wait(self._in_hand.values(), timeout=min(left_s, 0.2))
        if not self._in_hand:
            return
        self._runner.hurry()
        await asyncio.wait(self._in_hand.values(), timeout=GRACE_S)
        if self._in_hand:
            log.warning("%d runs could not be stopped; their leases end, recovery judges them", len(self._in_hand))

    async def _leave(self) -> None:
        try:
            await asyncio.wait_for(self._reader.leave(), GRACE_S)
        except (exceptions.RedisError, OSError, TimeoutError):
            return  # only tidiness: an idle name in a group
