"""The parent's own list of what it holds open, compared with what the kernel says before each fork.

A descriptor or a thread that nobody declared is how a child comes to share a database session, or to hang on a lock
that was held at the fork.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("pfsup.parent")

STANDARD = frozenset({0, 1, 2})


@dataclass(slots=True)
class Registry:
    """Open descriptors by number: what each is for, and how a child closes its copy.

    `inherited` are those that were open before the supervisor began: the caller's business, in children too.
    """

    inherited: frozenset[int]
    fds: int = 0  # at the last check, as the kernel counts
    strange_fds: int = 0
    strange_tasks: int = 0
    _own: dict[int, tuple[str, Callable[[], None] | None]] = field(
        default_factory=dict[int, tuple[str, Callable[[], None] | None]]
    )

    @classmethod
    def begin(cls, *, log_fd: int) -> Registry:
        """A registry for a process that has opened nothing of its own yet but its log."""
        registry = cls(frozenset(open_descriptors()) - {log_fd} | STANDARD)
        registry.own(log_fd, "log", close=None)
        return registry

    def own(self, fd: int, what: str, *, close: Callable[[], None] | None) -> None:
        """Declare a descriptor; `close` is how a child gets rid of it, None if children keep it (the log)."""
        self._own[fd] = (what, close)

    def release(self, fd: int) -> None:
        """It was closed."""
        self._own.pop(fd, None)

    def close_in_child(self, *, keep: int) -> None:
        """Close every declared descriptor but `keep` and those that children share.

        The selector among them is closed, never told to forget one descriptor: that would deafen the parent, since
        the kernel object is shared (seen).
        """
        for fd, (_what, close) in list(self._own.items()):
            if close is not None and fd != keep:
                close()

    def check(self) -> None:
        """Compare with the kernel; remember and log what is strange."""
        try:
            there = open_descriptors()
        except OSError as error:
            log.error("cannot compare the supervisor's descriptors with the kernel's: %s", error.strerror)
            return
        known = self.inherited | self._own.keys()
        self.fds = len(there)
        strange = {fd: _target(fd) for fd in there if fd not in known}
        tasks = kernel_tasks() - 1
        if (len(strange), tasks) != (self.strange_fds, self.strange_tasks) and (strange or tasks):
            log.error("undeclared in the supervisor: descriptors %s, further threads %d", strange, tasks)
        self.strange_fds, self.strange_tasks = len(strange), tasks


def kernel_tasks() -> int:
    """How many threads the kernel counts in this process."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - paths would be built to be counted only


def open_descriptors() -> list[int]:
    """The numbers of this process's open descriptors."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers, not paths
    return [fd for fd in numbers if _target(fd)]  # the listing's own descriptor is closed by now


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - the text of the link, not a path
    except OSError:
        return ""
