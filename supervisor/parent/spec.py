"""What the parent is given: which children to run, within which limits, and by which function."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from ...config.values import Settings

Group = Literal["recovery", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One child: its name, its work as "module:Class", and when it is told to stop (recovery first, then main)."""

    name: str
    target: str
    group: Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines in seconds, all measured on the monotonic clock."""

    boot_s: float = 30.0
    beat_s: float = 10.0
    stop_s: float = 25.0
    hasten_s: float = 2.0  # what a second signal leaves
    stable_s: float = 60.0  # ready for so long: the back-off starts afresh
    dump_s: float = 0.5  # between the order to dump its stacks and the KILL of a silent child
    unkillable_s: float = 5.0  # KILL was sent so long ago and the process is still there


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where this supervisor keeps its lock, its pid (information only) and its control socket."""

    lock: Path
    control: Path

    @property
    def pid(self) -> Path:
        """The pid file. Nobody decides by it."""
        return self.lock.with_suffix(".pid")

    def child_lock(self, name: str) -> Path:
        """The file that a running child of this name holds locked, so that no second copy works beside it."""
        return self.lock.with_name(f"{self.lock.stem}.{name.replace('/', '_')}.child")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a forked child gets: who it is, its settings, its end of the link, its lock's path.

    `early` holds the SIGTERMs that came before its event loop could take them: none may be lost.
    """

    spec: Spec
    settings: Settings
    boot_id: str
    generation: int
    link: socket.socket
    lock: Path
    early: list[int] = field(default_factory=list[int])


class LogOutput(Protocol):
    """Where this process's log goes: `errors` lines were lost, `fileno()` is -1 without a descriptor."""

    @property
    def errors(self) -> int: ...

    def fileno(self) -> int: ...

    def reopen(self) -> None: ...


ChildMain = Callable[[Start], int]
"""Runs in the child after the bootstrap; returns its exit code."""
