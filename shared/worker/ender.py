"""Ends messages (XACK + XDEL) in bundles, and again later while Redis is away. Work is settled before it comes here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from redis import exceptions

from ..backoff import Backoff
from ..db.ready import remedy
from ..drain import Drain
from ..log import Repeats
from .reader import Place


class Ender:
    """What is not ended when the process dies stays pending in Redis; whoever reads it next is told `ended`."""

    def __init__(self, end: Callable[[Iterable[Place]], Awaitable[None]]) -> None:
        self._end = end
        self._places: list[Place] = []
        self._due = asyncio.Event()
        self._closing = Drain()
        self._repeats = Repeats(logging.getLogger("pfsup.worker"))

    def __repr__(self) -> str:
        return f"<Ender places={len(self._places)}>"

    def add(self, place: Place) -> None:
        """End this message soon."""
        self._places.append(place)
        self._due.set()

    def close(self, within_s: float) -> None:
        """Let run() end when everything is ended, at the latest in `within_s` seconds."""
        self._closing.request(within_s)
        self._due.set()

    async def run(self) -> None:
        """End what comes, until closed and empty."""
        backoff = Backoff(0.1, 5.0)
        while True:
            await self._due.wait()
            self._due.clear()
            while self._places:
                if await self._flush():
                    backoff.reset()
                elif self._closing.left_s() <= 0:
                    return
                else:
                    await pause(min(backoff.next_s(), 0.2 if self._closing.requested else 5.0))
            if self._closing.requested:
                return

    async def _flush(self) -> bool:
        places, self._places = self._places, []
        try:
            await self._end(places)
        except (exceptions.RedisError, OSError) as error:
            self._places = places + self._places
            self._repeats.say(f"cannot end messages, they are settled: {remedy(error)}")
            return False
        self._repeats.over("messages are ended again")
        return True


async def pause(wait_s: float) -> None:
    """Wait `wait_s` seconds, for what nothing announces."""
    try:
        await asyncio.wait_for(asyncio.Event().wait(), wait_s)
    except TimeoutError:
        return
