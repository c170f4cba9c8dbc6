"""decide of local_edit: every row of its table by name, a total function, and no call that may be repeated."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pfsup.domains.decisions import Decision, Limits, Run, Verdict
from pfsup.domains.local_edit.decide import Evidence, decide, evidence

LIMITS = Limits(stale_after_s=1200.0, max_recoveries=3, interval_s=15.0, takeover_grace_s=5.0)
SEEN = Evidence(
    id="7",
    status="running",
    is_retryable=True,
    silent=True,
    phase="claimed",
    attempt_id="a1",
    request_hash="h1",
    effects=(),
    checks=1,
    recoveries=0,
)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "unknown")
PHASES = (None, "claimed", "provider_pending", "provider_call", "provider_result_received", "", "of tomorrow")
EFFECTS = ("pending", "applied", "unknown", "void")
RUNS = ("pending", "held", "sent", "running", "dead", "unknown")
LOST = Run(id=1, status="running", confirmed=True)

runs = st.none() | st.builds(
    Run,
    id=st.just(1),
    status=st.sampled_from(RUNS),
    token=st.none(),
    expires_at=st.sampled_from((None, datetime(2026, 1, 1, tzinfo=UTC))),
    alive=st.booleans(),
    effect=st.sampled_from(("none", "begun", "done")),
    on_lost=st.sampled_from(("unknown", "redispatch")),
    last_error=st.sampled_from((None, "why")),
    confirmed=st.booleans(),
)
seen = st.builds(
    Evidence,
    id=st.just("7"),
    status=st.sampled_from(STATUSES),
    is_retryable=st.booleans(),
    silent=st.booleans(),
    phase=st.sampled_from(PHASES),
    attempt_id=st.sampled_from((None, "a1")),
    request_hash=st.just("h1"),
    effects=st.lists(st.sampled_from(EFFECTS), max_size=3).map(tuple),
    checks=st.sampled_from((0, 1, 1000)),
    recoveries=st.sampled_from((0, 2, 3, 1000)),
    run=runs,
)


def judged(**columns: Any) -> Verdict:
    """What is decided of a running, silent edit in phase claimed, with these things otherwise."""
    return decide(replace(SEEN, **columns), LIMITS)


def may_have_called(edit: Evidence) -> bool:
    """Whether the evidence leaves it open that an outside call began: said again here, not asked of the code."""
    if edit.run is not None and edit.run.effect == "begun" and edit.run.on_lost != "redispatch":
        return True
    written = any(state != "void" for state in edit.effects)
    return edit.status == "running" and (edit.phase != "claimed" or written)


def test_running_and_claimed_is_sent_out_again_with_its_hash() -> None:
    verdict = judged()
    assert (verdict.decision, verdict.after, verdict.charged) == (Decision.REDISPATCH, "queued", True)
    assert [change.name for change in verdict.changes] == ["requeue"]
    assert verdict.stage is not None
    assert (verdict.stage.aggregate_id, verdict.stage.payload) == ("7", {"task_id": "7", "request_hash": "h1"})


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase != "claimed"])
def test_any_other_phase_is_unknown(phase: str | None) -> None:
    verdict = judged(phase=phase)
    assert (verdict.decision, verdict.after, verdict.stage) == (Decision.OUTCOME_UNKNOWN, "unknown", None)
    assert [change.name for change in verdict.changes] == ["lose"]
    assert repr(phase) in verdict.reason


@pytest.mark.parametrize("state", EFFECTS)
def test_claimed_with_a_call_in_the_journal_is_unknown_unless_it_is_void(state: str) -> None:
    wanted = Decision.REDISPATCH if state == "void" else Decision.OUTCOME_UNKNOWN
    assert judged(effects=("void", state)).decision is wanted


def test_running_is_legal_until_it_is_silent() -> None:
    assert judged(silent=False, phase="provider_call").decision is Decision.STILL_RUNNING


@pytest.mark.parametrize("phase", PHASES)
def test_queued_without_an_envelope_is_sent_out_as_it_is(phase: str | None) -> None:
    verdict = judged(status="queued", phase=phase, effects=("pending",), recoveries=99, silent=False)
    assert (verdict.decision, verdict.changes, verdict.charged) == (Decision.REDISPATCH, (), False)


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in ("queued", "running")])
def test_ended_has_moved_on_and_its_past_is_forgotten(status: str) -> None:
    verdict = judged(status=status)
    assert (verdict.decision, verdict.forget) == (Decision.MOVED_ON, True)


def test_what_no_machine_may_touch_has_moved_on_and_is_remembered() -> None:
    verdict = judged(is_retryable=False, phase="provider_call")
    assert (verdict.decision, verdict.forget) == (Decision.MOVED_ON, False)


@pytest.mark.parametrize("status", ["queued", "running"])
@pytest.mark.parametrize("envelope", ["pending", "held", "sent"])
def test_envelope_on_its_way_is_looked_after_there(status: str, envelope: str) -> None:
    verdict = judged(status=status, phase="provider_call", run=Run(id=1, status=envelope))
    assert verdict.decision is Decision.MOVED_ON


@pytest.mark.parametrize("status", ["queued", "running"])
def test_live_lease_keeps_it_whatever_its_age(status: str) -> None:
    verdict = judged(status=status, phase="provider_call", run=Run(id=1, status="running", alive=True))
    assert verdict.decision is Decision.STILL_RUNNING


def test_ended_lease_is_believed_at_the_second_look() -> None:
    first = judged(phase="provider_call", run=replace(LOST, confirmed=False))
    assert (first.decision, first.wait_s) == (Decision.STILL_RUNNING, 5.0)
    assert judged(phase="provider_call", run=LOST).decision is Decision.OUTCOME_UNKNOWN
    assert judged(silent=False, run=LOST).decision is Decision.REDISPATCH


@pytest.mark.parametrize("status", ["queued", "running"])
def test_run_whose_own_journal_has_a_call_is_unknown(status: str) -> None:
    assert judged(status=status, run=replace(LOST, effect="begun")).decision is Decision.OUTCOME_UNKNOWN


@pytest.mark.parametrize("run", [replace(LOST, effect="done"), replace(LOST, effect="begun", on_lost="redispatch")])
def test_run_whose_call_is_stored_or_may_be_repeated_is_sent_out_again(run: Run) -> None:
    """A done effect is handed to the next worker, which skips the call."""
    assert judged(run=run).decision is Decision.REDISPATCH


@pytest.mark.parametrize(("envelope", "wanted"), [("dead", Decision.GIVE_UP), ("unknown", Decision.OUTCOME_UNKNOWN)])
def test_ended_envelope_makes_it_unknown_with_its_reason(envelope: str, wanted: Decision) -> None:
    verdict = judged(run=Run(id=1, status=envelope, last_error="the stream refused it"))
    assert (verdict.decision, verdict.after) == (wanted, "unknown")
    assert "the stream refused it" in verdict.reason
    assert judged(status="queued", run=Run(id=1, status=envelope)).decision is Decision.MOVED_ON


@pytest.mark.parametrize("columns", [{}, {"run": LOST}, {"status": "queued", "run": LOST}])
def test_too_many_recoveries_make_it_unknown(columns: dict[str, Any]) -> None:
    assert judged(recoveries=2, **columns).decision is Decision.REDISPATCH
    verdict = judged(recoveries=3, **columns)
    assert (verdict.decision, verdict.after) == (Decision.GIVE_UP, "unknown")


def test_what_the_evidence_shows_comes_before_the_cap() -> None:
    assert judged(recoveries=99, phase="provider_call").decision is Decision.OUTCOME_UNKNOWN


@given(seen)
@settings(max_examples=1000)
def test_every_combination_gets_a_decision_that_changes_what_it_says(edit: Evidence) -> None:
    """An end is always unknown, for a person; what is looked after elsewhere is never changed."""
    verdict = decide(edit, LIMITS)
    assert verdict.reason
    match verdict.decision:
        case Decision.REDISPATCH:
            assert (verdict.after, verdict.stage is not None) == ("queued", True)
        case Decision.OUTCOME_UNKNOWN | Decision.GIVE_UP:
            assert (verdict.after, [change.name for change in verdict.changes]) == ("unknown", ["lose"])
            assert verdict.stage is None
        case Decision.STILL_RUNNING | Decision.MOVED_ON:
            assert (verdict.after, verdict.changes, verdict.stage) == ("", (), None)


@given(seen)
@settings(max_examples=1000)
def test_nothing_is_sent_out_whose_call_may_have_begun(edit: Evidence) -> None:
    if may_have_called(edit):
        assert decide(edit, LIMITS).decision is not Decision.REDISPATCH


def test_each_decision_is_reached_by_the_product_of_what_decides_and_none_repeats_a_call() -> None:
    """Exhaustive where hypothesis samples: one of each kind of run, at most one effect."""
    kept = [Run(id=1, status=status) for status in RUNS]
    gone = [
        replace(LOST, effect=effect, on_lost=lost) for effect in ("none", "begun") for lost in ("unknown", "redispatch")
    ]
    calls = [(), *((state,) for state in EFFECTS)]
    reached: set[Decision] = set()
    for status, retryable, silent, phase, effects, recoveries, run in product(
        STATUSES, (False, True), (False, True), PHASES, calls, (0, 3), [None, *kept, replace(LOST, alive=True), *gone]
    ):
        columns = {"status": status, "is_retryable": retryable, "silent": silent, "phase": phase, "effects": effects}
        edit = replace(SEEN, **columns, recoveries=recoveries, run=run)
        decision = decide(edit, LIMITS).decision
        assert decision is not Decision.REDISPATCH or not may_have_called(edit), edit
        reached.add(decision)
    assert reached == set(Decision)


def test_evidence_is_read_from_the_row_by_name() -> None:
    names = ("id", "status", "is_retryable", "silent", "phase", "attempt_id", "request_hash", "checks", "recoveries")
    row = {name: getattr(SEEN, name) for name in names} | {"effects": ["void", "pending"], "more": 1}
    assert evidence(row, LOST) == replace(SEEN, effects=("void", "pending"), run=LOST)
