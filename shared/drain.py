"""Drain: finish what began, take nothing new. A level that is checked everywhere, never an edge that can be missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Drain:
    """Asked for once, with what is left of the stop budget; never taken back.

    `deadline` is on the monotonic clock, in seconds; None until the drain is asked for.
    """

    __slots__ = ("_event", "_monotonic", "deadline")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._event = asyncio.Event()
        self._monotonic = monotonic
        self.deadline: float | None = None

    def __repr__(self) -> str:
        return f"<Drain {'requested' if self.requested else 'not requested'} deadline={self.deadline}>"

    @property
    def requested(self) -> bool:
        """True from the first request on."""
        return self._event.is_set()

    def request(self, within_s: float) -> None:
        """Ask for the drain to be over in `within_s` seconds. A second request can only shorten the time."""
        deadline = self._monotonic() + within_s
        if self.deadline is None or deadline < self.deadline:
            self.deadline = deadline
        self._event.set()

    def left_s(self) -> float:
        """Seconds until the deadline, never below 0; infinity while no drain is asked for."""
        return float("inf") if self.deadline is None else max(0.0, self.deadline - self._monotonic())

    async def wait(self) -> None:
        """Return once a drain is asked for."""
        await self._event.wait()
