"""Which end a stuck delivery gets: it renders the same bytes every time, so it is simply started again."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one job. `silent`: no sign of life for `stale_after`; null times count as silent."""

    id: str
    status: str
    is_retryable: bool
    silent: bool
    checks: int
    recoveries: int
    run: Run | None = None

    @property
    def had_a_run(self) -> bool:
        """A worker had it: the job says so, or its envelope does (one that dies before it marks the job costs too)."""
        return self.status == "running" or self.run is not None


def evidence(row: Mapping[str, Any], run: Run | None) -> Evidence:
    """The re-read row as evidence."""
    names = ("id", "status", "is_retryable", "silent", "checks", "recoveries")
    return Evidence(**{name: row[name] for name in names}, run=run)


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """DOMAINS.md, delivery: always re-dispatch, never unknown; failed after `max_recoveries`."""
    if seen.status not in OPEN or not seen.is_retryable:
        return moved_on(f"it is {seen.status}", finished=seen.status not in OPEN)
    found = look_after(seen.run, queued=seen.status == "queued", silent=seen.silent, limits=limits)
    match found:
        case Verdict():
            return found
        case Ended():
            return _failed(found.why)
        case Lost() if seen.run is not None and seen.run.uncertain:
            return _failed(f"{found.why}; its journal says that an outside effect began")
        case Lost() if seen.had_a_run and seen.recoveries >= limits.max_recoveries:
            return _failed(f"{found.why}; {seen.recoveries} recoveries did not help")
        case Lost():
            return Verdict(
                decision=Decision.REDISPATCH,
                reason=found.why,
                after="queued",
                changes=(Change(name="requeue"),),
                stage=Staging(aggregate_id=seen.id, payload={"job_id": seen.id}),
                charged=seen.had_a_run,
            )


def _failed(why: str) -> Verdict:
    return Verdict(decision=Decision.GIVE_UP, reason=why, after="failed", changes=(Change(name="fail"),))
