"""A child works only while it holds its name's lock: a second copy never works beside an orphan of an earlier one."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from ...domains.contract import Link
from ..parent.lock import holder

RETRY_S = 0.2


async def hold(path: Path, link: Link) -> bool:
    """Take the lock, waiting for its present holder to end. False if a drain was asked for first.

    The descriptor stays open until the process ends: that is what releases it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not _try(fd):
        link.waiting(
            f"another {link.identity.name} (pid {holder(path) or 'unknown'}) is still running; waiting for its end"
        )
        try:
            await asyncio.wait_for(link.drain.wait(), RETRY_S)
        except TimeoutError:
            continue
        os.close(fd)
        return False
    link.waiting(None)
    return True


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
