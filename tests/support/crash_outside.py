"""The demo's provider in a process of the test's own."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pfsup.supervisor.demo.provider import serve

from .dispatcher import kill
from .waiting import until


@contextmanager
def provider(directory: Path) -> Generator[tuple[Path, Path]]:
    """A running provider: its socket and its log. Killed at the end."""
    socket, log = directory / "provider", directory / "provider.log"
    pid = os.fork()
    if pid == 0:
        try:
            serve(str(socket), str(log))
        finally:
            os._exit(1)
    try:
        until(socket.exists)
        yield socket, log
    finally:
        kill(pid)
