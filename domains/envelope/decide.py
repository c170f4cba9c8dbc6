"""What becomes of an envelope that is sent and not begun, or whose worker's lease ended (DOMAINS.md, envelope)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..decisions import (
    WAITING_CAP_S,
    WAITING_FIRST_S,
    Decision,
    Limits,
    Verdict,
    moved_on,
    still_running,
)


class Place(StrEnum):
    """Where a sent row's entry is, as the stream and its consumer group tell."""

    WAITING = "waiting"  # not given to any consumer yet: no candidate, however long the queue is
    TAKEN_UP = "taken_up"  # in the pending list: a consumer was given it and has not acknowledged it
    ACKNOWLEDGED = "acknowledged"  # given and acknowledged, and never begun
    GONE = "gone"  # no such entry, or it is another dispatch's; the stream is in order
    STREAM_LOST = "stream_lost"  # one event for all its rows: dispatch sends them anew (DESIGN 4.10)
    UNCLEAR = "unclear"  # Redis did not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one envelope under its lock. `moved`: it is no longer the delivery or the run that was found.

    `idle_s`: how long a taken-up entry has lain; `grace_s`: how long it may. `confirmed`: the second look at a lost
    run. `sent_again`: how often recovery has sent it anew.
    """

    id: int
    status: str
    moved: bool
    place: Place | None = None
    idle_s: float = 0.0
    grace_s: float = 60.0
    alive: bool = False
    confirmed: bool = False
    effect: str = "none"
    on_lost: str = "unknown"
    recoveries: int = 0
    sent_again: int = 0


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """Total: every envelope gets a decision. A running row of an actor with a business domain never comes here."""
    if seen.moved or seen.status not in ("sent", "running"):
        return moved_on(f"it is {seen.status}, and no longer what was found", finished=False)
    if seen.status == "running":
        return _judge_run(seen, limits)
    return _judge_entry(seen)


def _judge_run(seen: Evidence, limits: Limits) -> Verdict:
    if seen.alive:
        return still_running("its worker holds it under a live lease")
    if not seen.confirmed:
        why = "its worker's lease ended: one more look before it is taken for lost"
        return still_running(why, wait_s=limits.takeover_grace_s)
    if seen.effect == "begun" and seen.on_lost != "redispatch":
        return Verdict(
            decision=Decision.OUTCOME_UNKNOWN,
            reason="its worker was lost after an outside effect began, and nothing proves how that ended",
            after="unknown",
        )
    if seen.recoveries >= limits.max_recoveries:
        why = f"its worker was lost once more, {seen.recoveries} recoveries did not help"
        return Verdict(decision=Decision.GIVE_UP, reason=why, after="dead")
    return Verdict(
        decision=Decision.REDISPATCH,
        reason=f"its worker was lost; its effect is {seen.effect}",
        after="pending",
        charged=True,
        wait_s=0.0,  # a message that gets lost afterwards is another matter: nothing of this holds it back
    )


def _judge_entry(seen: Evidence) -> Verdict:
    """A message is sent anew only when it is proved that no consumer will begin it."""
    if seen.place is Place.TAKEN_UP and seen.idle_s < seen.grace_s:
        return still_running("a consumer has its entry", wait_s=seen.grace_s - seen.idle_s)
    if seen.place is None:
        return still_running(_LEFT[Place.UNCLEAR])
    if seen.place in _LOST:
        wait_s = min(WAITING_CAP_S, WAITING_FIRST_S * 2.0 ** min(seen.sent_again, 20))
        return Verdict(decision=Decision.REDISPATCH, reason=_LOST[seen.place], after="pending", wait_s=wait_s)
    return still_running(_LEFT[seen.place])


_LOST = {
    Place.TAKEN_UP: "a consumer took its entry and never began",
    Place.ACKNOWLEDGED: "its entry was acknowledged and never begun",
    Place.GONE: "its entry is no longer in the stream",
}
_LEFT = {
    Place.WAITING: "its entry waits in the stream",
    Place.STREAM_LOST: "its stream was lost: dispatch sends all its rows anew",
    Place.UNCLEAR: "Redis did not say where its entry is",
}
