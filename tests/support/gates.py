"""Holding a loop at a named point, and letting it go on: tests own time and order."""

from __future__ import annotations

import asyncio
from typing import Any

from pfsup.shared.points import Points

from .waiting import HANG_S


class Gates(Points):
    """Counts how often each point was reached; `hold` stops whoever comes to it until `open`."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, dict[str, Any]]] = []
        self._held: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()

    def count(self, name: str) -> int:
        """How often the point was reached, held ones included."""
        return sum(point == name for point, _ in self.reached)

    def hold(self, name: str) -> None:
        """From now on whoever reaches the point waits there."""
        self._held[name] = asyncio.Event()

    def open(self, name: str) -> None:
        """Let everyone who waits at the point go on, and later comers pass."""
        self._held.pop(name).set()

    async def arrival(self, name: str, times: int = 1) -> dict[str, Any]:
        """Wait until the point was reached `times` times; return the facts of that visit."""

        def found() -> bool:
            return self.count(name) >= times

        async with asyncio.timeout(HANG_S), self._changed:
            await self._changed.wait_for(found)
        return [facts for point, facts in self.reached if point == name][times - 1]

    async def reach(self, name: str, **facts: object) -> None:
        self.reached.append((name, dict(facts)))
        async with self._changed:
            self._changed.notify_all()
        if name in self._held:
            await self._held[name].wait()
