"""One epoll, and the list of what is registered in it: objects, never bare numbers."""

from __future__ import annotations

import math
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from .registry import Registry


class Priority(IntEnum):
    """The order within one turn: who ended, then what children say, then people."""

    SIGNAL = 0
    EXIT = 1
    CHILD = 2
    CONTROL = 3


@dataclass(slots=True, eq=False)
class Source:
    """Something that becomes readable (or writable, when `wants_write`); `act` is called once a turn then.

    A source that was closed earlier in the same turn is passed over: its number may already be someone else's.
    """

    fd: int
    priority: Priority
    act: Callable[[], None]
    is_open: bool = True  # watched
    is_declared: bool = True  # in the registry
    wants_write: bool = False


class Poller:
    """Waits for sources and keeps the registry of descriptors true."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._selector = selectors.EpollSelector()
        registry.own(self._selector.fileno(), "epoll", close=self._selector.close)

    def add(self, fd: int, what: str, priority: Priority, act: Callable[[], None], close: Callable[[], None]) -> Source:
        """Watch `fd`; `close` is how a child closes its copy."""
        source = Source(fd, priority, act)
        self._selector.register(fd, selectors.EVENT_READ, source)
        self.registry.own(fd, what, close=close)
        return source

    def mute(self, source: Source) -> None:
        """Watch a source no longer; its descriptor stays open, and declared."""
        if source.is_open:
            source.is_open = False
            self._selector.unregister(source.fd)

    def remove(self, source: Source) -> None:
        """Forget a source. Call it before the descriptor is closed: afterwards epoll cannot let go of it (seen)."""
        self.mute(source)
        if source.is_declared:
            source.is_declared = False
            self.registry.release(source.fd)

    def write_too(self, source: Source, wanted: bool) -> None:
        """Wait for room to write as well, or no longer."""
        if source.is_open and source.wants_write != wanted:
            source.wants_write = wanted
            both = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(source.fd, both, source)

    def wait(self, timeout_s: float) -> list[Source]:
        """The sources that are ready, the most urgent first; empty after `timeout_s`, rounded up to a millisecond."""
        ready = self._selector.select(math.ceil(max(0.0, timeout_s) * 1000) / 1000)
        return sorted((key.data for key, _ in ready), key=lambda source: source.priority)

    def close(self) -> None:
        """Close the epoll."""
        self.registry.release(self._selector.fileno())
        self._selector.close()
