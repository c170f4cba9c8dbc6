"""A dispatcher in a process of its own that stops at a named point, to be killed there."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Generator
from contextlib import contextmanager

import uvloop
from pfsup.config.values import Settings
from pfsup.domains.dispatch import Dispatch
from pfsup.shared.points import Points

from .link import TestLink
from .waiting import HANG_S


class StopAt(Points):
    """Says on a pipe that the point was reached, and never lets go."""

    def __init__(self, point: str, pipe: int) -> None:
        self._point = point
        self._pipe = pipe

    async def reach(self, name: str, **facts: object) -> None:
        del facts
        if name == self._point:
            os.write(self._pipe, b"!")
            await asyncio.Event().wait()


@contextmanager
def stopped_at(point: str, settings: Settings, *, boot_id: str) -> Generator[int]:
    """Fork a dispatcher (generation 1 of `boot_id`) and wait until it stands at `point`; yields its pid. It is killed
    with SIGKILL at the end of the block at the latest.
    """
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be(point, settings, boot_id, said)
    os.close(said)
    try:
        ready, _, _ = select.select([heard], [], [], HANG_S)
        assert ready, f"the dispatcher never came to {point}"
        assert os.read(heard, 1), f"the dispatcher ended before {point}"
        yield pid
    finally:
        os.close(heard)
        kill(pid)


def kill(pid: int) -> None:
    """SIGKILL a child and reap it; a second call does nothing."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _be(point: str, settings: Settings, boot_id: str, pipe: int) -> None:
    """The child: one dispatcher, and out without the test's own endings."""
    code = 1
    try:
        uvloop.run(_work(point, settings, boot_id, pipe))
        code = 0
    finally:
        os._exit(code)


async def _work(point: str, settings: Settings, boot_id: str, pipe: int) -> None:
    await Dispatch(settings, "dispatch", points=StopAt(point, pipe)).run(TestLink(boot_id=boot_id))
