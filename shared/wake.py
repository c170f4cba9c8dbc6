"""A wake slot of capacity one: "look at the database", however many said so (seed 000, section 4.2)."""

from __future__ import annotations

import asyncio


class WakeSlot:
    """Wake-ups that come before the waiter looks are one wake-up; none is ever lost.

    The waiter clears the slot *before* it scans. A wake that arrives during the scan is then one more scan, and a
    task committed before the wake is seen by the scan that follows it. One waiter; wakers on the same loop.
    """

    __slots__ = ("_event", "wakes")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.wakes = 0

    def __repr__(self) -> str:
        return f"<WakeSlot {'set' if self._event.is_set() else 'clear'} wakes={self.wakes}>"

    @property
    def is_set(self) -> bool:
        """True if someone woke the slot since it was last cleared."""
        return self._event.is_set()

    def wake(self) -> None:
        """Say that it is worth looking. Never blocks; said twice it is one wake-up."""
        self.wakes += 1
        self._event.set()

    def clear(self) -> None:
        """Take the wake-up. Call it before the scan, never after."""
        self._event.clear()

    async def wait(self) -> None:
        """Return as soon as the slot is set; leave it set."""
        await self._event.wait()
