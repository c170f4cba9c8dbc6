"""Which end a stuck image session gets: it goes on only where every outside call so far is proved, stored or void.

What is proved is what is stored. `completed_candidates` proves nothing and is not even read; an `applied` line of the
journal whose images are not all stored proves nothing either. The next image is the first one missing. Where images
are missing in the middle, a worker that counts them would go on elsewhere than one that looks for the gap: neither
number may be covered by a call.

A running row without an attempt was never in a worker's hands, or its claim was only half written: no phase is needed
to prove that nothing began, but one that says otherwise is believed.
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
BETWEEN_CALLS = ("running", "candidate_saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One call in the journal: to yield `count` images from `first_index`.

    `own`: of the active attempt. `stored`: every image of its range is.
    """

    state: str
    first_index: int
    count: int
    own: bool
    stored: bool

    @property
    def is_proved(self) -> bool:
        """Its images are stored, and it says so or will when it is repaired (an observer repairs nothing)."""
        return self.stored and (self.state == "applied" or (self.state == "pending" and self.own))

    def covers(self, index: int) -> bool:
        """The image of this index is one of its range."""
        return self.first_index <= index < self.first_index + self.count

    def __str__(self) -> str:
        last = self.first_index + self.count - 1
        images = f"image {self.first_index}" if self.count == 1 else f"images {self.first_index} to {last}"
        return f"the call for {images} is {self.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one task. `silent`: no sign of life for `stale_after`; null times count as silent.

    `missing`: the first index that is not stored; `stored`: how many images are.
    """

    id: str
    status: str
    is_retryable: bool
    silent: bool
    phase: str | None
    attempt_id: str | None
    active_index: int | None
    missing: int
    stored: int
    effects: tuple[Effect, ...]
    checks: int
    recoveries: int
    run: Run | None = None

    @property
    def was_taken(self) -> bool:
        """A worker had it: then what stands here costs a recovery, else it only waited."""
        return self.status == "running" or self.run is not None

    @property
    def doubt(self) -> str:
        """Why an outside call may have begun and not be stored; "" when it is proved that none is.

        Phase and journal judge running rows only; a run that says itself that it called, any.
        """
        if self.run is not None and self.run.uncertain:
            return "its envelope's journal says that an outside effect began"
        if self.status == "queued":
            return ""
        if self.active_index is not None:
            return f"image {self.active_index} was being made"
        if self.phase not in (BETWEEN_CALLS if self.attempt_id is not None else (*BETWEEN_CALLS, None)):
            return f"phase {self.phase!r} is no proof that the provider was not called"
        return next((said for effect in self.effects if (said := self._doubt_about(effect))), "")

    def _doubt_about(self, effect: Effect) -> str:
        if effect.state == "void":
            return ""
        if not effect.is_proved:
            unproved = f"{effect}, and not all of it is stored" if effect.state == "applied" else str(effect)
            return f"{unproved}{'' if effect.own else ' (of another attempt)'}"
        covered = next((index for index in (self.missing, self.stored) if effect.covers(index)), None)
        return "" if covered is None else f"{effect}, and covers image {covered}, which is next"


def evidence(row: Mapping[str, Any], run: Run | None) -> Evidence:
    """The re-read row as evidence."""
    names = ("id", "status", "is_retryable", "silent", "phase", "attempt_id", "active_index", "missing", "stored")
    effects = tuple(Effect(**effect) for effect in row["effects"])
    known = {name: row[name] for name in (*names, "checks", "recoveries")}
    return Evidence(**known, effects=effects, run=run)


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """DOMAINS.md, image_session: again when all is proved, else unknown; unknown after `max_recoveries`."""
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
    """A running one is queued, and goes on with the next image; a queued one stays as it is."""
    return Verdict(
        decision=Decision.REDISPATCH,
        reason=why,
        after="queued",
        changes=(Change(name="requeue"),) if seen.status == "running" else (),
        stage=Staging(aggregate_id=seen.id, payload={"task_id": seen.id}),
        charged=seen.was_taken,
    )


def _unknown(why: str, decision: Decision = Decision.OUTCOME_UNKNOWN) -> Verdict:
    return Verdict(decision=decision, reason=why, after="unknown", changes=(Change(name="lose"),))
