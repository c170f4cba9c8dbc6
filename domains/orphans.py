"""Lost runs whose business row is over, gone, or waits for a person: the last kind of candidate of each domain.

A worker that stored its result without settling in the same transaction, or whose row was cancelled or deleted while it
ran, leaves an envelope that runs for ever. The row needs nothing any more; the envelope gets the row's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .decisions import Change, Decision, Limits, Lost, Run, Verdict, look_after, moved_on
from .phase import Phase

# What becomes of the run, by its row's status. The last two wait for a person, whose answer stages a run of its own.
_ENDS = {
    "succeeded": "consumed",
    "failed": "consumed",
    "cancelled": "cancelled",
    "unknown": "unknown",
    "requires_input": "consumed",
    "awaiting_confirmation": "consumed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One lost run. `row_status`: of its business row, None when there is none; `status` is the envelope's."""

    row_status: str | None
    is_retryable: bool
    checks: int
    recoveries: int
    run: Run | None

    @property
    def status(self) -> str:
        """Before the decision: the envelope's status."""
        return self.run.status if self.run else "gone"


def evidence(row: Mapping[str, Any], run: Run | None) -> Evidence:
    """The re-read row as evidence."""
    return Evidence(
        row_status=row["status"],
        is_retryable=row["is_retryable"],
        checks=row["checks"],
        recoveries=row["recoveries"],
        run=run,
    )


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """The row's end becomes the envelope's; an effect that nobody can prove is unknown whatever the row says."""
    if seen.run is None or seen.run.status != "running":
        return moved_on("its run has ended", finished=True)
    if seen.row_status is not None and seen.row_status not in _ENDS and seen.is_retryable:
        return moved_on(f"its row is {seen.row_status}: it is judged with the row", finished=False)
    found = look_after(seen.run, queued=False, silent=True, limits=limits)
    if not isinstance(found, Lost):
        return found if isinstance(found, Verdict) else moved_on(found.why, finished=True)
    return _as_its_row(seen.run, seen.row_status, found.why)


def _as_its_row(run: Run, row_status: str | None, why: str) -> Verdict:
    if run.uncertain:
        return _unknown(f"{why}, after an outside effect began")
    if row_status is None:
        return _end(run, "cancelled", f"{why}; its row is gone")
    if row_status not in _ENDS:
        return _unknown(f"{why}; its row is {row_status} and no machine may retry it")
    return _end(run, _ENDS[row_status], f"{why}; its row is {row_status}")


def _unknown(why: str) -> Verdict:
    return Verdict(decision=Decision.OUTCOME_UNKNOWN, reason=why, after="unknown")


def _end(run: Run, becomes: str, why: str) -> Verdict:
    asked = {"dispatch_id": run.id, "token": run.token, "becomes": becomes}
    change = Change(name="end_run", params=asked, raced="its worker came back, or somebody ended it")
    return Verdict(decision=Decision.MOVED_ON, reason=why, after=becomes, changes=(change,))


ORPHANS: Phase[Evidence] = Phase(find="find_orphans", recheck="recheck_orphan", evidence=evidence, decide=decide)
