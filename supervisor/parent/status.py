"""The state as one JSON object: what `pfsup status --json` prints, without its "schema"."""

from __future__ import annotations

from typing import Any

from .table import Actual, Child, Desired, State


def snapshot(state: State, now: float, *, figures: dict[str, Any]) -> dict[str, Any]:
    """The whole status; `figures` are the supervisor's own (pid, turns, strange_fds, ...)."""
    children = [row(child, now) for child in state.children.values()]
    return {"supervisor": {"state": _phase(state), "ready": is_ready(state), **figures}, "children": children}


def is_ready(state: State) -> bool:
    """True if every child that is wanted does its work, and no stop was asked for."""
    wanted = [child for child in state.children.values() if child.desired is not Desired.DOWN]
    return state.shutdown is None and all(child.actual is Actual.READY for child in wanted)


def is_live(state: State) -> bool:
    """True if no child hangs beyond the reach of a KILL."""
    return all(child.actual is not Actual.UNKILLABLE for child in state.children.values())


def row(child: Child, now: float) -> dict[str, Any]:
    """One child."""
    said, end = child.said, child.last_exit
    return {
        "name": child.name,
        "group": child.spec.group,
        "desired": child.desired.value,
        "override": child.overridden,
        "state": child.actual.value,
        "pid": child.pid or None,
        "generation": child.generation,
        "restarts": max(0, child.generation - 1),
        "since_at": child.since_at,
        "since_s": round(now - child.since, 3),
        "phase": said.phase if child.pid else "",
        "phase_s": round(now - said.phase_since, 3) if child.pid else None,
        "waiting": said.waiting if child.pid else None,
        "retry_in_s": round(max(0.0, child.retry - now), 3) if child.actual is Actual.BACKOFF else None,
        "figures": said.figures,
        "dropped": said.dropped,
        "beats": said.beats,
        "last_exit": None
        if end is None
        else {
            "kind": end.kind.value,
            "code": end.code,
            "signal": end.signal,
            "by_us": end.by_us,
            "text": end.text,
            "uptime_s": round(end.uptime_s, 3),
            "at": end.at,
        },
    }


def _phase(state: State) -> str:
    return "running" if state.shutdown is None else "stopping"
