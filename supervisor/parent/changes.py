"""How facts change the table. Nothing here touches a process; plan() reads what this writes."""

from __future__ import annotations

import logging
from typing import Any, cast

from ...shared.figures import bounded
from ...shared.text import printable
from .exits import Exit, ExitKind, classify, needed_force
from .plan import RECOVERY_SHARE
from .table import Actual, Child, Clocks, Desired, Fact, Said, Shutdown, State, following

RECHECK_FIRST_S = 0.02
RECHECK_CAP_S = 1.0

log = logging.getLogger("pfsup.parent")


def step(child: Child, fact: Fact, now: float, wall: float) -> None:
    """Move the child along the table and note since when it is there."""
    after = following(child.actual, fact)
    if after is not child.actual:
        child.actual, child.since, child.since_at = after, now, wall


def spawned(child: Child, state: State, pid: int, now: float, wall: float) -> None:
    """A process was forked: a new generation begins, its boot clock runs."""
    if child.desired is Desired.RESTART:
        child.desired = Desired.UP
    child.pid, child.spawned = pid, now
    child.clocks = Clocks(boot=now + state.limits.boot_s, heard=now)
    child.said = Said(phase="booting", phase_since=now)
    child.killed_by_us, child.forced = "", False
    step(child, Fact.SPAWNED, now, wall)


def spawn_failed(child: Child, why: str, now: float, wall: float) -> None:
    """The system refused a process: back off, as after a crash."""
    child.last_exit = Exit(kind=ExitKind.NO_FORK, why=why, at=wall)
    child.retry = now + child.backoff.next_s()
    step(child, Fact.SPAWN_FAILED, now, wall)


def told_to_stop(child: Child, deadline: float, now: float, wall: float) -> None:
    """It was told to drain until `deadline`."""
    child.clocks.stop = deadline
    step(child, Fact.TOLD_TO_STOP, now, wall)


def kill_sent(child: Child, why: str, now: float, wall: float) -> None:
    """KILL went to its group."""
    child.killed_by_us = child.killed_by_us or why
    child.clocks.killed = now
    step(child, Fact.KILL_SENT, now, wall)


def heard(child: Child, message: dict[str, Any], now: float, wall: float) -> None:
    """Take one message of the child's. Whatever it says is a sign of life; unknown types change nothing else."""
    child.clocks.heard = now
    match message.get("type"):
        case "ready":
            child.clocks.ready = child.clocks.ready or now
            step(child, Fact.SAID_READY, now, wall)
            if child.said.waiting is not None:
                _wait(child, now, wall)
        case "waiting":
            child.said.waiting = _text(message.get("reason"))
            _go_on(child, now, wall) if child.said.waiting is None else _wait(child, now, wall)
        case "beat":
            _beat(child, message, now)
        case "bye":
            child.said.bye = _whole(message.get("code"))
        case _:
            pass


def exited(child: Child, state: State, *, code: int | None, signum: int | None, now: float, wall: float) -> None:
    """Its process ended and was reaped; the others of its group were sent KILL."""
    kind = classify(code=code, signum=signum, killed_by_us=child.killed_by_us)
    uptime_s = now - child.spawned
    child.last_exit = Exit(kind=kind, code=code, signal=signum, why=child.killed_by_us, uptime_s=uptime_s, at=wall)
    told = child.clocks.stop < float("inf")
    child.forced = (told or bool(child.killed_by_us and state.shutdown)) and needed_force(
        child.last_exit, bye=child.said.bye
    )
    child.pid = 0
    child.recheck = now + RECHECK_FIRST_S
    step(child, Fact.EXITED, now, wall)


def group_gone(child: Child, state: State, now: float, wall: float) -> None:
    """Nobody of the old generation is left: the next one may come after its back-off."""
    planned = child.clocks.stop < float("inf")
    ready_s = now - child.clocks.ready if child.clocks.ready is not None else 0.0
    if ready_s >= state.limits.stable_s or planned:
        child.backoff.reset()
    child.retry = now if planned else now + _delay_s(child)
    step(child, Fact.GROUP_GONE, now, wall)


def still_there(child: Child, now: float) -> None:
    """The group is not empty yet: look again, ever more rarely."""
    waited_s = now - child.since
    child.recheck = now + min(RECHECK_CAP_S, max(RECHECK_FIRST_S, waited_s))


def stop_asked(state: State, now: float) -> None:
    """One more signal: the first asks for a drain, the second cuts it short, the third kills."""
    limits, stop = state.limits, state.shutdown
    if stop is None:
        recovery = now + limits.stop_s * RECOVERY_SHARE
        state.shutdown = stop = Shutdown(level=1, recovery=recovery, total=now + limits.stop_s)
    else:
        stop.level = min(3, stop.level + 1)
    if stop.level == 2:
        stop.total = min(stop.total, now + limits.hasten_s)
        stop.recovery = min(stop.recovery, stop.total)


def grant_a_period(state: State, now: float) -> None:
    """The parent itself overslept: nobody is judged for what it could not hear."""
    for child in state.children.values():
        clocks = child.clocks
        clocks.heard = max(clocks.heard, now)
        clocks.boot = max(clocks.boot, now + state.limits.beat_s)


def _wait(child: Child, now: float, wall: float) -> None:
    if child.actual is Actual.BOOTING:
        child.clocks.boot_left_s = max(0.0, child.clocks.boot - now)
    step(child, Fact.SAID_WAITING, now, wall)


def _go_on(child: Child, now: float, wall: float) -> None:
    if child.actual is not Actual.WAITING:
        return
    fact = Fact.SAID_GOING_ON if child.clocks.ready is None else Fact.SAID_READY
    if fact is Fact.SAID_GOING_ON:
        child.clocks.boot = now + child.clocks.boot_left_s
    step(child, fact, now, wall)


def _beat(child: Child, message: dict[str, Any], now: float) -> None:
    said = child.said
    said.beats += 1
    said.phase = _text(message.get("phase")) or said.phase
    said.phase_since = now - _age_s(message.get("phase_age_s"))
    figures = message.get("figures")
    if isinstance(figures, dict):
        said.figures = bounded(cast("dict[str, Any]", figures))
    said.dropped = _whole(message.get("dropped")) or 0


def _delay_s(child: Child) -> float:
    if child.last_exit is not None and child.last_exit.kind is ExitKind.CONFIG:
        child.backoff.failures = max(child.backoff.failures, 16)  # straight to the cap: only a person can mend it
    return child.backoff.next_s()


def _text(value: object) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _age_s(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
