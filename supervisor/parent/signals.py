"""Signals become flags; a byte in a pipe ends the wait. Nothing else happens in a handler."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Any

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
BLOCKED = frozenset({*WATCHED, signal.SIGUSR2})


class Signals:
    """Owns the handlers and the self-pipe for as long as it is entered.

    The truth is in the counts: a full pipe loses bytes, never a signal.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: Mapping[signal.Signals, Any] = {}

    @property
    def fds(self) -> tuple[int, int]:
        """Both ends of the pipe."""
        return self.reader, self._writer

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._note) for number in WATCHED}
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            signal.signal(number, before)
        os.close(self.reader)
        os.close(self._writer)

    def take(self) -> Counter[int]:
        """The signals since the last call, counted; empties the pipe."""
        try:
            while os.read(self.reader, 4096):
                pass
        except BlockingIOError:
            pass
        taken: Counter[int] = Counter()
        for number in list(self.counts):
            taken[number] = self.counts.pop(number)
        return taken

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.counts[number] += 1


def lost_terminal(*, had_one: bool) -> bool:
    """True if this process had a controlling terminal at its start and has none now: the window was closed."""
    return had_one and not has_terminal()


def has_terminal() -> bool:
    """True if this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
