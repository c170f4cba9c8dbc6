"""What one cycle of a domain did, and how long it will take to drain what is there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .decisions import Decision

EFFECTIVE = (Decision.REDISPATCH, Decision.OUTCOME_UNKNOWN, Decision.GIVE_UP)


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts of one cycle; times in seconds.

    `waiting`: candidates that the cycle saw, those that were locked or asleep included; it says nothing about what lies
    behind the rows it looked at. `has_more`: more candidates were free than a batch holds; nothing about locked ones.
    `oldest_s`: the age of the oldest candidate, locked ones included.
    """

    examined: int = 0
    decisions: Counter[Decision] = field(default_factory=Counter[Decision])
    locked: int = 0
    staged: int = 0
    errors: list[Exception] = field(default_factory=list[Exception])
    has_more: bool = False
    waiting: int = 0
    oldest_s: float = 0.0
    looked_at: int = 0
    duration_s: float = 0.0
    database_s: float = 0.0
    pool_wait_s: float = 0.0
    complete: bool = True  # False when the drain ended it

    @property
    def effective(self) -> int:
        """Decisions that settled something."""
        return sum(self.decisions[decision] for decision in EFFECTIVE)

    @property
    def effective_ratio(self) -> float:
        """The share of what was examined that was settled; 1.0 when nothing was examined."""
        return self.effective / self.examined if self.examined else 1.0

    @property
    def idle(self) -> bool:
        """Nothing was examined, locked or failed."""
        return not (self.examined or self.locked or self.errors)

    def drain_s(self, interval_s: float) -> float | None:
        """Estimated seconds until what waits is settled, at this cycle's rate B/T; None while nothing gets settled.

        Source: seed 000, section 7. A cycle takes its own time or the interval, whichever is longer.
        """
        if not self.waiting:
            return 0.0
        if not self.effective:
            return None
        return self.waiting / self.effective * max(interval_s, self.duration_s)

    def figures(self, interval_s: float) -> dict[str, Any]:
        """The report for `status`: JSON values only."""
        drain_s = self.drain_s(interval_s)
        return {
            "examined": self.examined,
            **{decision.value: self.decisions[decision] for decision in Decision},
            "locked": self.locked,
            "staged": self.staged,
            "errors": len(self.errors),
            "has_more": self.has_more,
            "waiting": self.waiting,
            "looked_at": self.looked_at,
            "oldest_candidate_s": round(self.oldest_s, 3),
            "effective_ratio": round(self.effective_ratio, 3),
            "drain_s": None if drain_s is None else round(drain_s, 1),
            "duration_s": round(self.duration_s, 4),
            "database_s": round(self.database_s, 4),
            "pool_wait_s": round(self.pool_wait_s, 4),
        }
