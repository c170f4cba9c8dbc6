"""What recovery may decide, and the rule that every business domain shares: who looks after a running row.

Everything here is data and pure functions. A domain's `decide(evidence, limits) -> Verdict` builds on it; acting is the
cycle's (domains/cycle.py). Source: seed 000, sections 5.2 and 6; DOMAINS.md, head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

WAITING_FIRST_S = 60.0
WAITING_CAP_S = 3600.0
WAITING_CYCLES = 6  # a domain that looks often waits less for the first time: six of its intervals
ASLEEP_CAP_S = 300.0


class Decision(StrEnum):
    """What becomes of a candidate."""

    REDISPATCH = "redispatch"  # proved that running it (again) repeats nothing outside
    STILL_RUNNING = "still_running"  # somebody works on it, or may yet: look again later
    OUTCOME_UNKNOWN = "outcome_unknown"  # an outside effect began and cannot be proved either way: a person decides
    GIVE_UP = "give_up"  # it cost too many recoveries, or its envelope is dead
    MOVED_ON = "moved_on"  # no longer a candidate when it was looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the configuration allows. Times in seconds; `share`: of its time that recovery may work."""

    stale_after_s: float
    max_recoveries: int
    interval_s: float
    takeover_grace_s: float
    share: float = 1.0

    @property
    def asleep_cap_s(self) -> float:
        """The longest sleep in the ledger: else a dead task hides behind its own back-off."""
        return min(ASLEEP_CAP_S, self.stale_after_s / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One named statement of the domain that changes rows, and its parameters beside those every statement gets.

    `raced`: what it means that the statement changes no row, or that a unique index refuses it: somebody whom no lock
    of ours holds was faster. Then nothing of the verdict is done, and the candidate has moved on. "": not looked at.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    raced: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """The envelope of a business row: its delivery key is '<domain>:<aggregate id>', a new one gets `payload`."""

    aggregate_id: str
    payload: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision, why, and what it changes. `after`: the business row's next status, "" when it keeps the one it has.

    `charged`: this costs one of `max_recoveries`. `forget`: the candidate's past no longer counts. `wait_s`: when to
    look again, None for the ledger's usual back-off.
    """

    decision: Decision
    reason: str
    after: str = ""
    changes: tuple[Change, ...] = ()
    stage: Staging | None = None
    charged: bool = False
    forget: bool = False
    wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The live envelope of a business row. `alive`: running under a lease and a deadline that have not ended.

    `confirmed`: token and expiry were the same at a second look, the takeover grace of unbroken connection later.
    """

    id: int
    status: str
    token: UUID | None = None
    expires_at: datetime | None = None
    alive: bool = False
    effect: str = "none"
    on_lost: str = "unknown"
    last_error: str | None = None
    confirmed: bool = False

    @property
    def uncertain(self) -> bool:
        """An outside effect was begun, is not proved either way, and the actor does not allow to begin it again."""
        return self.effect == "begun" and self.on_lost != "redispatch"


def still_running(reason: str, *, wait_s: float | None = None) -> Verdict:
    """Look again later; nothing is changed."""
    return Verdict(decision=Decision.STILL_RUNNING, reason=reason, wait_s=wait_s)


def moved_on(reason: str, *, finished: bool) -> Verdict:
    """No longer a candidate. `finished`: it came to an end, so its past recoveries no longer count."""
    return Verdict(decision=Decision.MOVED_ON, reason=reason, forget=finished)


@dataclass(frozen=True, slots=True)
class Lost:
    """Nobody works on the row and nobody will: the domain judges it by its own evidence."""

    why: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The row's envelope came to an end that a person must look into, so the row gets that end too."""

    status: str  # dead | unknown
    why: str


def look_after(run: Run | None, *, queued: bool, silent: bool, limits: Limits) -> Verdict | Lost | Ended:
    """Who looks after a row that is queued or running, from its live envelope (None: it has none) and its silence.

    While the envelope is pending, held or sent the envelope domain does; under a live lease its worker, whatever the
    row's age. A lease that ended is believed at the second look. Only a row without an envelope is judged by silence.
    """
    if run is None:
        if queued:
            return Lost("queued, and no envelope stands for it")
        return Lost("no envelope stands for it, and it is silent") if silent else still_running("its silence is legal")
    if run.status == "running":
        return _look_after_running(run, limits)
    if run.status in ("dead", "unknown") and not queued:
        return Ended(run.status, f"its envelope {run.id} is {run.status}: {run.last_error or 'no reason is noted'}")
    who = "a person decides" if run.status in ("dead", "unknown") else "it is looked after there"
    return moved_on(f"its envelope {run.id} is {run.status}: {who}", finished=False)


def _look_after_running(run: Run, limits: Limits) -> Verdict | Lost:
    if run.alive:
        return still_running("its worker holds it under a live lease")
    if not run.confirmed:
        why = "its worker's lease ended: one more look before it is taken for lost"
        return still_running(why, wait_s=limits.takeover_grace_s)
    return Lost("its worker's lease ended and nobody prolonged it")


def next_look_s(verdict: Verdict, *, checks: int, recoveries: int, limits: Limits) -> float | None:
    """Seconds until the candidate may be looked at again; None keeps what the hand-out set.

    A row that merely waited backs off from a minute to an hour, since nothing is lost by it; one whose run was lost
    must not hide behind its back-off for long.
    """
    if verdict.wait_s is not None:
        return verdict.wait_s
    if verdict.decision is not Decision.REDISPATCH:
        return None
    first_s = min(WAITING_FIRST_S, WAITING_CYCLES * limits.interval_s)
    if verdict.charged:
        return min(limits.asleep_cap_s, first_s * 2.0 ** min(recoveries, 20))
    return min(WAITING_CAP_S, first_s * 2.0 ** min(max(0, checks - 1), 20))
