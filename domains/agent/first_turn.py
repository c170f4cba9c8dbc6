"""Whether a queued task gets its first turn: made under the task's lock, before it is judged, and sent to a worker.

A task whose conversation is gone gets none: nobody is there to read an answer, and a turn not begun costs nothing. A
turn that exists is not asked for its conversation; it carries what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..decisions import Change, Decision, Limits, Run, Staging, Verdict, moved_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is known of one task. `turn_id`: its first turn, None where there is none; `run`: that turn's envelope."""

    task_id: str
    status: str
    has_conversation: bool
    turn_id: str | None
    turn_status: str | None
    needs_worker: bool
    checks: int
    recoveries: int
    run: Run | None = None


def evidence(row: Mapping[str, Any], run: Run | None) -> Task:
    """The re-read row as evidence."""
    names = ("task_id", "status", "has_conversation", "turn_id", "turn_status", "needs_worker", "checks", "recoveries")
    return Task(**{name: row[name] for name in names}, run=run)


def decide(seen: Task, limits: Limits) -> Verdict:
    """DOMAINS.md, agent 2: a queued task without a first turn."""
    del limits
    if seen.status != "queued":
        return moved_on(f"it is {seen.status}", finished=seen.status != "running")
    if seen.turn_id is None:
        return _without_turn(seen)
    if not seen.needs_worker:
        return moved_on(f"its first turn is {seen.turn_status}", finished=False)
    if seen.run is not None:
        return moved_on(f"its first turn has envelope {seen.run.id}", finished=False)
    return Verdict(
        decision=Decision.REDISPATCH,
        reason="queued, and its first turn stood for nobody",
        after="queued",
        changes=(Change(name="name_first_turn", params={"task_id": seen.task_id, "turn_id": seen.turn_id}),),
        stage=Staging(aggregate_id=seen.turn_id, payload={"turn_id": seen.turn_id}),
    )


def _without_turn(seen: Task) -> Verdict:
    """Nothing made its first turn: its conversation is gone, or (observe mode) nothing is written."""
    if seen.has_conversation:
        return Verdict(decision=Decision.REDISPATCH, reason="queued without a first turn", after="queued")
    return Verdict(
        decision=Decision.GIVE_UP,
        reason="its conversation is gone",
        after="unknown",
        changes=(Change(name="end_task", params={"task_id": seen.task_id}),),
    )
