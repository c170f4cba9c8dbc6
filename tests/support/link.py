"""The child's side of the supervision, for tests that run a role without a supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from pfsup.domains.contract import Identity, Role
from pfsup.shared.drain import Drain
from pfsup.shared.wake import WakeSlot

from .waiting import HANG_S, auntil


class TestLink:
    """Records what a role says. Make it inside the loop that the role runs on."""

    __test__ = False  # not a class of tests

    def __init__(
        self, *, boot_id: str | None = None, generation: int = 1, name: str = "dispatch", instance: str = "pfsup"
    ) -> None:
        self._identity = Identity(instance=instance, boot_id=boot_id or str(uuid4()), name=name, generation=generation)
        self._wake = WakeSlot()
        self._drain = Drain()
        self.is_ready = False
        self.phases: list[str] = []
        self.reasons: list[str | None] = []
        self.figures: dict[str, Any] = {}
        self.woken_peers: list[str] = []

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def wake(self) -> WakeSlot:
        return self._wake

    @property
    def drain(self) -> Drain:
        return self._drain

    @property
    def reason(self) -> str | None:
        """What the role waits for now."""
        return self.reasons[-1] if self.reasons else None

    def ready(self) -> None:
        self.is_ready = True

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def waiting(self, reason: str | None) -> None:
        self.reasons.append(reason)

    def report(self, figures: Mapping[str, Any]) -> None:
        self.figures = dict(figures)

    def wake_peer(self, name: str) -> None:
        self.woken_peers.append(name)


@asynccontextmanager
async def at_work(role: Role, link: TestLink, *, ready: bool = True) -> AsyncGenerator[asyncio.Task[None]]:
    """Run the role until the block ends, then drain it; a fault of the role is the test's failure.

    `ready` waits until the role says so; a role that ends before that fails the test at once.
    """
    task = asyncio.create_task(role.run(link))
    try:
        if ready:
            await auntil(lambda: link.is_ready or task.done(), what="the role is ready")
            if task.done():
                await task
        yield task
        link.drain.request(HANG_S)
        await asyncio.wait_for(task, HANG_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
