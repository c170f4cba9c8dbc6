"""What to do now, and when to look again: pure functions of the state and a monotonic time.

Each pair of wanted and actual state has one rule; a rule names the acts that become due and when. plan() is what is
due by now, next_due() the earliest of the rest: a deadline that can change nothing any more has no rule, so it can
never keep the loop awake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .spec import Group
from .table import RUNNING, Actual, Child, Desired, State

NOW = float("-inf")
IMMORTAL = frozenset({Actual.UNKILLABLE, Actual.CLEARING})
GONE = IMMORTAL | {Actual.DISABLED, Actual.BACKOFF}  # what does not work, and holds up nobody's stop
RECOVERY_SHARE = 0.6  # of the stop budget; what recovery leaves over is dispatch's


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork this child."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell this child to drain until `deadline`."""

    name: str
    deadline: float


@dataclass(frozen=True, slots=True)
class Dump:
    """Make this child write its stacks: it will be killed."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """KILL this child's process group."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """KILL was sent long ago: call the child unkillable."""

    name: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """Look whether the process group of a child that is gone is empty now."""

    name: str


@dataclass(frozen=True, slots=True)
class Rest:
    """No process and none wanted: call the child disabled."""

    name: str


Action = Spawn | Stop | Dump | Kill | Doubt | Recheck | Rest


@dataclass(frozen=True, slots=True)
class Due:
    """An act and the monotonic time from which it is due."""

    at: float
    action: Action


def plan(state: State, now: float) -> list[Action]:
    """The acts that are due at `now`, at most one a child and at most one fork in all."""
    acts = [due.action for child in state.children.values() for due in _first(child, state, now) if due.at <= now]
    first_spawn = next((act for act in acts if isinstance(act, Spawn)), None)
    return [act for act in acts if not isinstance(act, Spawn) or act is first_spawn]


def next_due(state: State, now: float) -> float:
    """The earliest monotonic time at which plan() would return something; infinity if only an event can change it."""
    dues = [due.at for child in state.children.values() for due in _first(child, state, now)]
    return min((*dues, _last_moment(state)), default=float("inf"))


def finished(state: State, now: float) -> bool:
    """True once a stop was asked for and no child is left, or those that are left outlived even a KILL."""
    if state.shutdown is None:
        return False
    return all(c.actual is Actual.DISABLED for c in state.children.values()) or now >= _last_moment(state)


def _last_moment(state: State) -> float:
    """When a stop ends although something unkillable is left; infinity while anything else is."""
    left = {c.actual for c in state.children.values()} - {Actual.DISABLED}
    if state.shutdown is None or not left or left - IMMORTAL:
        return float("inf")
    return state.shutdown.total + 2 * state.limits.unkillable_s


def wanted(child: Child, state: State) -> Desired:
    """What is wanted of this child, the supervisor's own stop included: recovery goes first, the others after it."""
    stop = state.shutdown
    if stop is None:
        return child.desired
    if child.spec.group == "recovery" or stop.level > 1 or _recovery_is_gone(state):
        return Desired.DOWN
    return child.desired


def stop_deadline(child: Child, state: State, now: float) -> float:
    """Until when this child may drain if it is told to at `now`."""
    alone = min(child.clocks.stop, now + state.limits.stop_s)
    if state.shutdown is None or wanted(child, state) is not Desired.DOWN:
        return alone
    return min(alone, _group_deadline(child.spec.group, state))


def _group_deadline(group: Group, state: State) -> float:
    if state.shutdown is None:
        return float("inf")
    return state.shutdown.recovery if group == "recovery" else state.shutdown.total


def _recovery_is_gone(state: State) -> bool:
    return all(c.actual in GONE for c in state.children.values() if c.spec.group == "recovery")


Rule = Callable[[Child, State, float], Iterator[Due]]


def _first(child: Child, state: State, now: float) -> list[Due]:
    """The one act of this child that is due first."""
    if _kill_all(state) and child.actual in RUNNING - {Actual.KILLING, Actual.UNKILLABLE}:
        return [Due(NOW, Kill(child.name, "a third signal"))]
    dues = RULES[wanted(child, state), child.actual](child, state, now)
    return sorted(dues, key=lambda due: due.at)[:1]


def _kill_all(state: State) -> bool:
    return state.shutdown is not None and state.shutdown.level > 2


def _nothing(_child: Child, _state: State, _now: float) -> Iterator[Due]:
    yield from ()


def _spawn(child: Child, _state: State, _now: float) -> Iterator[Due]:
    yield Due(child.retry, Spawn(child.name))


def _spawn_now(child: Child, _state: State, _now: float) -> Iterator[Due]:
    yield Due(NOW, Spawn(child.name))


def _rest(child: Child, _state: State, _now: float) -> Iterator[Due]:
    yield Due(NOW, Rest(child.name))


def _boot(child: Child, state: State, _now: float) -> Iterator[Due]:
    # Silence is not judged here: a healthy child may be busy importing for longer than a beat.
    yield from _ladder(child, state, child.clocks.boot, f"not ready within {state.limits.boot_s:g} s")


def _silence(child: Child, state: State, _now: float) -> Iterator[Due]:
    deadline = child.clocks.heard + state.limits.beat_s
    yield from _ladder(child, state, deadline, f"no beat for {state.limits.beat_s:g} s")


def _ladder(child: Child, state: State, deadline: float, why: str) -> Iterator[Due]:
    # A dump from before the deadline belongs to an earlier doubt that a beat has settled.
    if child.clocks.dumped < deadline:
        yield Due(deadline, Dump(child.name))
    else:
        yield Due(child.clocks.dumped + state.limits.dump_s, Kill(child.name, why))


def _stop(child: Child, state: State, now: float) -> Iterator[Due]:
    yield Due(NOW, Stop(child.name, stop_deadline(child, state, now)))


def _stopping(child: Child, state: State, now: float) -> Iterator[Due]:
    tighter = stop_deadline(child, state, now)
    if tighter < child.clocks.stop:
        yield Due(NOW, Stop(child.name, tighter))
    yield Due(child.clocks.stop, Kill(child.name, "its stop deadline passed"))


def _killing(child: Child, state: State, _now: float) -> Iterator[Due]:
    yield Due(child.clocks.killed + state.limits.unkillable_s, Doubt(child.name))


def _clearing(child: Child, _state: State, _now: float) -> Iterator[Due]:
    yield Due(child.recheck, Recheck(child.name))


_ANY: dict[Actual, Rule] = {
    Actual.STOPPING: _stopping,
    Actual.KILLING: _killing,
    Actual.UNKILLABLE: _nothing,
    Actual.CLEARING: _clearing,
}
_END: dict[Actual, Rule] = {Actual.BOOTING: _stop, Actual.WAITING: _stop, Actual.READY: _stop}

RULES: dict[tuple[Desired, Actual], Rule] = {
    (desired, actual): rule
    for desired, rules in {
        Desired.UP: {
            Actual.DISABLED: _spawn_now,
            Actual.BACKOFF: _spawn,
            Actual.BOOTING: _boot,
            Actual.WAITING: _silence,
            Actual.READY: _silence,
        },
        Desired.DOWN: {Actual.DISABLED: _nothing, Actual.BACKOFF: _rest} | _END,
        Desired.RESTART: {Actual.DISABLED: _spawn_now, Actual.BACKOFF: _spawn_now} | _END,
    }.items()
    for actual, rule in (rules | _ANY).items()
}
"""Wanted and actual state → rule. Total: a test walks every pair."""
