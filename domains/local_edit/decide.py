"""Which end a stuck local edit gets: started again only where the provider's call is proved not to have begun.

The proof is the phase `claimed`, and a journal of outside calls in which nothing contradicts it. A worker writes its
intent there before it calls, so any line of any attempt that is not void means that a call may have been made. A person
who lets an `unknown` edit run again says what became of its lines.
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

OPEN = ("queued", "running")
BEFORE_THE_CALL = "claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one edit. `silent`: no sign of life for `stale_after`; null times count as silent.

    `effects`: the states of its lines in the journal of outside calls, whatever their attempt.
    """

    id: str
    status: str
    is_retryable: bool
    silent: bool
    phase: str | None
    attempt_id: str | None
    request_hash: str
    effects: tuple[str, ...]
    checks: int
    recoveries: int
    run: Run | None = None

    @property
    def was_taken(self) -> bool:
        """A worker had it: then what stands here costs a recovery, else it only waited."""
        return self.status == "running" or self.run is not None

    @property
    def doubt(self) -> str:
        """Why an outside call may have begun; "" when it is proved that none did.

        Phase and journal judge running rows only; a run that says itself that it called, any.
        """
        if self.run is not None and self.run.uncertain:
            return "its envelope's journal says that an outside effect began"
        if self.status == "queued":
            return ""
        if self.phase != BEFORE_THE_CALL:
            return f"phase {self.phase!r} is no proof that the provider was not called"
        written = [state for state in self.effects if state != "void"]
        return f"the journal has outside calls of it: {', '.join(sorted(set(written)))}" if written else ""


def evidence(row: Mapping[str, Any], run: Run | None) -> Evidence:
    """The re-read row as evidence."""
    names = ("id", "status", "is_retryable", "silent", "phase", "attempt_id", "request_hash", "checks", "recoveries")
    return Evidence(**{name: row[name] for name in names}, effects=tuple(row["effects"]), run=run)


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """DOMAINS.md, local_edit: from `claimed` again, from any other phase unknown; unknown after `max_recoveries`."""
    if seen.status not in OPEN or not seen.is_retryable:
        return moved_on(f"it is {seen.status}", finished=seen.status not in OPEN)
    found = look_after(seen.run, queued=seen.status == "queued", silent=seen.silent, limits=limits)
    match found:
        case Verdict():
            return found
        case Ended():
            return _unknown(found.why, Decision.GIVE_UP if found.status == "dead" else Decision.OUTCOME_UNKNOWN)
        case Lost() if seen.doubt:
            return _unknown(f"{found.why}; {seen.doubt}")
        case Lost() if seen.was_taken and seen.recoveries >= limits.max_recoveries:
            return _unknown(f"{found.why}; {seen.recoveries} recoveries did not help", Decision.GIVE_UP)
        case Lost():
            return _again(seen, found.why)


def _again(seen: Evidence, why: str) -> Verdict:
    """A running one is queued as if no worker had had it; a queued one stays as it is."""
    return Verdict(
        decision=Decision.REDISPATCH,
        reason=why,
        after="queued",
        changes=(Change(name="requeue"),) if seen.status == "running" else (),
        stage=Staging(aggregate_id=seen.id, payload={"task_id": seen.id, "request_hash": seen.request_hash}),
        charged=seen.was_taken,
    )


def _unknown(why: str, decision: Decision = Decision.OUTCOME_UNKNOWN) -> Verdict:
    return Verdict(decision=decision, reason=why, after="unknown", changes=(Change(name="lose"),))
