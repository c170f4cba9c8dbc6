"""Which end a turn gets whose worker is gone, and whether a turn that nobody owns is sent to a worker.

A turn is started again only when nothing outside can happen twice: no call of it is unproved. What becomes of the
envelope of a turn that needs no worker (it ended, or waits for a person) when that envelope is running and lost: it is
put back in line, although a worker can only settle it. Nothing else ends it well: `unknown` and `dead` ask for a person
and block the turn's next envelope. It repeats no work, because the worker that gets it asks the same view as recovery
(agent_turns_needing_worker) and does not find the turn there. With an unproved call it ends `unknown` instead: that is
for a person, and recovery never sends out an envelope whose effect began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..decisions import (
    Change,
    Decision,
    Ended,
    Limits,
    Lost,
    Run,
    Staging,
    Verdict,
    look_after,
    moved_on,
)

ENDS = ("succeeded", "failed", "cancelled", "unknown")
OPEN = ("queued", "running", "cancel_requested")
SHOWN = 10  # unproved effects that a reason names; the journal names all


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is known of one turn.

    `expired`: its owner's lease ended, or there is none. `ended`: the end that its journal has. `unproved`: outside
    calls that may have been made and have no stored result. `needs_worker`: what a worker would be told too.
    """

    id: str
    status: str
    phase: str | None
    owned: bool
    expired: bool
    answered: bool
    needs_worker: bool
    ended: str | None
    unproved: tuple[str, ...]
    checks: int
    recoveries: int
    run: Run | None = None

    @property
    def is_over(self) -> bool:
        """The row says that the turn came to an end."""
        return self.status in ENDS

    @property
    def is_open(self) -> bool:
        """There is work left for a worker."""
        return self.status in OPEN or (self.status == "requires_input" and self.answered)

    @property
    def waits(self) -> bool:
        """A person is asked; no worker is needed."""
        return self.status == "awaiting_confirmation" or (self.status == "requires_input" and not self.answered)

    @property
    def untouched(self) -> bool:
        """The worker that owned it had not begun: queued, or its answer not taken away yet, or no more than claimed."""
        return self.status in ("queued", "requires_input") or self.phase == "claimed"

    @property
    def doubt(self) -> str:
        """Which outside call cannot be proved either way; "" when none is."""
        if self.unproved:
            more = ", …" if len(self.unproved) > SHOWN else ""
            return f"unproved outside calls: {', '.join(self.unproved[:SHOWN])}{more}"
        if self.run is not None and self.run.uncertain:
            return "its envelope's journal says that an outside effect began"
        return ""


def evidence(row: Mapping[str, Any], run: Run | None) -> Turn:
    """The re-read row as evidence."""
    names = ("id", "status", "phase", "owned", "expired", "answered", "needs_worker", "ended", "checks", "recoveries")
    return Turn(**{name: row[name] for name in names}, unproved=tuple(row["unproved"]), run=run)


def decide_expired(seen: Turn, limits: Limits) -> Verdict:
    """DOMAINS.md, agent 1: an owned turn whose lease ended. Never succeeded or failed but as the journal says."""
    if not (seen.owned and seen.expired):
        return moved_on("its owner prolonged the lease, or let go of it", finished=seen.is_over)
    found = _look_for_worker(seen.run, limits)
    if isinstance(found, Verdict):
        return found
    if seen.is_over or seen.ended is not None or seen.waits:
        return _close(seen, found.why)
    return _judge(seen, found, limits)


def decide_unbound(seen: Turn, limits: Limits) -> Verdict:
    """DOMAINS.md, agent 3: an open turn that nobody owns, without an envelope that brings it to a worker."""
    if seen.owned or not seen.is_open:
        return moved_on(f"it is {seen.status}{', and owned' if seen.owned else ''}", finished=seen.is_over)
    queued = seen.status == "queued" and seen.ended is None
    found = look_after(seen.run, queued=queued, silent=True, limits=limits)
    if isinstance(found, Verdict):
        return found
    if seen.ended is not None:
        return _close(seen, found.why)
    return _start(seen, found, limits)


def _close(seen: Turn, why: str) -> Verdict:
    """A turn that needs no worker gets the end that its journal has, or only loses its owner's lease."""
    if seen.is_over:
        return _let_go(seen, f"it is {seen.status}, with an owner left on it", ("collect", "reconcile"))
    if seen.ended is not None:
        changes = ("end_turn", "end_task_of_turn", "reconcile")
        return _let_go(seen, f"its journal says that it is {seen.ended}", changes, end=seen.ended)
    return _let_go(seen, f"{why}; it waits for a person", ("collect",))


def _judge(seen: Turn, found: Lost | Ended, limits: Limits) -> Verdict:
    """A turn that was owned and still needs a worker: started again if its worker had not begun, else unknown."""
    if seen.doubt:
        return _unknown(f"{found.why}; {seen.doubt}")
    if isinstance(found, Ended) and seen.status != "queued":
        return _unknown(found.why, decision=_decision(found))
    if not seen.untouched:
        return _unknown(f"{found.why}; phase {seen.phase!r} is no proof that nothing began")
    return _release(seen, found, limits)


def _start(seen: Turn, found: Lost | Ended, limits: Limits) -> Verdict:
    """A turn that nobody owned: sent to a worker as it is, unless that may repeat something or is in vain."""
    if seen.doubt:
        return _unknown(f"{found.why}; {seen.doubt}")
    if isinstance(found, Ended):
        return _unknown(found.why, decision=_decision(found))
    if not seen.needs_worker:
        return moved_on("no worker may take it", finished=False)
    if seen.recoveries >= limits.max_recoveries:
        return _worn_out(seen, found)
    return _again(seen, found.why, (), after=seen.status, charged=seen.run is not None or seen.status == "running")


def _look_for_worker(run: Run | None, limits: Limits) -> Verdict | Lost | Ended:
    """Whether a worker still holds the envelope; only then the turn's own lease, which has ended, says nothing."""
    if run is None or run.status in ("pending", "held", "sent"):
        return Lost("its owner's lease ended")
    return look_after(run, queued=False, silent=True, limits=limits)


def _decision(found: Ended) -> Decision:
    return Decision.OUTCOME_UNKNOWN if found.status == "unknown" else Decision.GIVE_UP


def _let_go(seen: Turn, why: str, changes: tuple[str, ...], *, end: str = "") -> Verdict:
    """The turn needs no worker; its envelope, when that is running and lost, must come to an end too."""
    decision, stage = Decision.MOVED_ON, None
    if seen.run is not None and seen.run.status == "running":
        decision = Decision.OUTCOME_UNKNOWN if seen.doubt else Decision.REDISPATCH
        stage = None if seen.doubt else _staging(seen)
    return Verdict(
        decision=decision,
        reason=f"{why}; {seen.doubt}" if seen.doubt else why,
        after=end or seen.status,
        changes=tuple(Change(name=name, params={"end": end}) for name in changes),
        stage=stage,
        wait_s=0.0,
    )


def _release(seen: Turn, found: Lost | Ended, limits: Limits) -> Verdict:
    changes, after = (Change(name="release"),), "queued" if seen.status == "running" else seen.status
    if isinstance(found, Ended) or (seen.run is not None and seen.run.status == "held"):
        why = f"{found.why}; a person decides about its envelope"
        return Verdict(decision=Decision.MOVED_ON, reason=why, after=after, changes=changes)
    if seen.recoveries >= limits.max_recoveries:
        return _worn_out(seen, found)
    return _again(seen, found.why, changes, after=after, charged=True)


def _again(seen: Turn, why: str, changes: tuple[Change, ...], *, after: str, charged: bool) -> Verdict:
    return Verdict(
        decision=Decision.REDISPATCH,
        reason=why,
        after=after,
        changes=changes,
        stage=_staging(seen),
        charged=charged,
    )


def _staging(seen: Turn) -> Staging:
    return Staging(aggregate_id=seen.id, payload={"turn_id": seen.id})


def _worn_out(seen: Turn, found: Lost) -> Verdict:
    why = f"{found.why}; {seen.recoveries} recoveries did not help"
    return _unknown(why, decision=Decision.GIVE_UP)


def _unknown(why: str, *, decision: Decision = Decision.OUTCOME_UNKNOWN) -> Verdict:
    """The turn ends unknown, its task with it; the journal gets what was interrupted and its one end."""
    changes = (
        Change(name="end_turn", params={"end": "unknown"}),
        Change(name="end_task_of_turn"),
        Change(name="interrupt"),
        Change(name="append_unknown"),
        Change(name="reconcile"),
    )
    return Verdict(decision=decision, reason=why, after="unknown", changes=changes)
