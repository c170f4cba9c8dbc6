"""The child table: what is wanted, what is, and what may follow what.

`Desired` is edited by signals and commands alone, `Actual` by facts alone. NEXT is total: a test walks every pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ...shared.backoff import Backoff
from .exits import Exit
from .spec import Limits, Spec


class Desired(StrEnum):
    """What signals and commands ask for."""

    UP = "up"
    DOWN = "down"
    RESTART = "restart"


class Actual(StrEnum):
    """What a child is."""

    DISABLED = "disabled"  # no process, none wanted
    BACKOFF = "backoff"  # no process, the next start has a time
    BOOTING = "booting"  # forked; the boot clock runs
    WAITING = "waiting"  # it says what it lacks; the boot clock stands still
    READY = "ready"  # it does its work
    STOPPING = "stopping"  # told to drain; its stop clock runs
    KILLING = "killing"  # KILL was sent
    UNKILLABLE = "unkillable"  # KILL was sent long ago
    CLEARING = "clearing"  # it is gone, others of its process group are not yet


class Fact(StrEnum):
    """What happened to a child."""

    SPAWNED = "spawned"
    SPAWN_FAILED = "spawn failed"
    SAID_READY = "said ready"
    SAID_WAITING = "said waiting"
    SAID_GOING_ON = "said going on"
    TOLD_TO_STOP = "told to stop"
    KILL_SENT = "kill sent"
    SURVIVED_KILL = "survived kill"
    EXITED = "exited"
    GROUP_GONE = "group gone"
    RESTED = "rested"


RUNNING = frozenset({Actual.BOOTING, Actual.WAITING, Actual.READY, Actual.STOPPING, Actual.KILLING, Actual.UNKILLABLE})
"""States in which there is a process to signal."""

_A, _F = Actual, Fact
_SAID = (_F.SAID_READY, _F.SAID_WAITING, _F.SAID_GOING_ON)
_NONE: dict[Fact, Actual] = {}


def _running(**changes: Actual) -> dict[Fact, Actual]:
    """What holds in every running state, unless `changes` says otherwise for what the child said."""
    return {
        _F.TOLD_TO_STOP: _A.STOPPING,
        _F.KILL_SENT: _A.KILLING,
        _F.EXITED: _A.CLEARING,
    } | {Fact[name.upper()]: actual for name, actual in changes.items()}


def _ending(actual: Actual) -> dict[Fact, Actual]:
    """A child on its way out: whatever it says changes nothing."""
    return dict.fromkeys((*_SAID, _F.TOLD_TO_STOP), actual) | {_F.KILL_SENT: _A.KILLING, _F.EXITED: _A.CLEARING}


NEXT: dict[Actual, dict[Fact, Actual]] = {
    _A.DISABLED: {_F.SPAWNED: _A.BOOTING, _F.SPAWN_FAILED: _A.BACKOFF, _F.RESTED: _A.DISABLED},
    _A.BACKOFF: {_F.SPAWNED: _A.BOOTING, _F.SPAWN_FAILED: _A.BACKOFF, _F.RESTED: _A.DISABLED},
    _A.BOOTING: _running(said_ready=_A.READY, said_waiting=_A.WAITING, said_going_on=_A.BOOTING),
    _A.WAITING: _running(said_ready=_A.READY, said_waiting=_A.WAITING, said_going_on=_A.BOOTING),
    _A.READY: _running(said_ready=_A.READY, said_waiting=_A.WAITING, said_going_on=_A.READY),
    _A.STOPPING: _ending(_A.STOPPING),
    _A.KILLING: _ending(_A.KILLING) | {_F.SURVIVED_KILL: _A.UNKILLABLE},
    _A.UNKILLABLE: _ending(_A.UNKILLABLE) | {_F.KILL_SENT: _A.UNKILLABLE},
    _A.CLEARING: {_F.GROUP_GONE: _A.BACKOFF},
}
"""State and fact → next state. A pair that is not here cannot happen, and raises."""


def following(actual: Actual, fact: Fact) -> Actual:
    """The state that `fact` leads to. Raises LookupError for a pair that cannot happen."""
    try:
        return NEXT[actual][fact]
    except KeyError:
        raise LookupError(f"cannot follow {actual.value!r} with {fact.value!r}: no such step in the table") from None


def drawing() -> str:
    """NEXT as a mermaid state diagram, for ARCHITECTURE.md."""
    edges = (
        f"    {actual.value} --> {after.value}: {fact.value}"
        for actual, row in NEXT.items()
        for fact, after in row.items()
        if after is not actual
    )
    return "\n".join(("stateDiagram-v2", "    [*] --> disabled", *edges))


@dataclass(slots=True, kw_only=True)
class Clocks:
    """One generation's deadlines and marks: monotonic seconds; infinity = not running."""

    boot: float = float("inf")
    boot_left_s: float = 0.0  # kept while it waits
    heard: float = 0.0
    dumped: float = float("-inf")
    ready: float | None = None
    stop: float = float("inf")
    killed: float = float("inf")


@dataclass(slots=True, kw_only=True)
class Said:
    """What the child said about itself last; shown, never decided by (but `waiting` and `bye`)."""

    waiting: str | None = None
    phase: str = ""
    phase_since: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    dropped: int = 0
    beats: int = 0
    bye: int | None = None


@dataclass(slots=True, kw_only=True)
class Child:
    """One row of the table."""

    spec: Spec
    backoff: Backoff
    desired: Desired = Desired.UP
    actual: Actual = Actual.DISABLED
    generation: int = 0
    pid: int = 0
    pgid: int = 0  # of the generation that ran last
    since: float = 0.0
    since_at: float = 0.0  # wall time, shown only
    spawned: float = 0.0
    retry: float = float("-inf")
    recheck: float = float("inf")
    clocks: Clocks = field(default_factory=Clocks)
    said: Said = field(default_factory=Said)
    last_exit: Exit | None = None
    killed_by_us: str = ""  # why, when we did
    overridden: bool = False  # disabled at run time
    forced: bool = False  # its last stop needed force

    @property
    def name(self) -> str:
        """The child's name."""
        return self.spec.name


@dataclass(slots=True, kw_only=True)
class Shutdown:
    """The whole supervisor is stopping. `level` counts the signals: 1 drain, 2 hasten, 3 kill."""

    level: int
    recovery: float  # deadline of the first group
    total: float  # deadline of all


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that plan() decides by."""

    children: dict[str, Child]
    limits: Limits
    shutdown: Shutdown | None = None
