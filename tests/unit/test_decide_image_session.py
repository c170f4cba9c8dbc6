"""decide of image_session: every row of its table by name, a total function, and no call that may be repeated."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pfsup.domains.decisions import Decision, Limits, Run, Verdict
from pfsup.domains.image_session.decide import Effect, Evidence, decide, evidence

LIMITS = Limits(stale_after_s=5400.0, max_recoveries=3, interval_s=15.0, takeover_grace_s=5.0)
SEEN = Evidence(
    id="7",
    status="running",
    is_retryable=True,
    silent=True,
    phase="candidate_saved",
    attempt_id="a1",
    active_index=None,
    missing=2,
    stored=2,
    effects=(),
    checks=1,
    recoveries=0,
)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "unknown")
PHASES = (None, "running", "candidate_saved", "claimed", "provider_call", "", "of tomorrow")
STATES = ("pending", "applied", "unknown", "void")
RUNS = ("pending", "held", "sent", "running", "dead", "unknown")
LOST = Run(id=1, status="running", confirmed=True)
APPLIED = Effect(state="applied", first_index=0, count=2, own=True, stored=True)

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
effects = st.builds(
    Effect,
    state=st.sampled_from(STATES),
    first_index=st.sampled_from((0, 1, 2, 3, 2147483647)),
    count=st.sampled_from((1, 2, 2147483647)),
    own=st.booleans(),
    stored=st.booleans(),
)
seen = st.builds(
    Evidence,
    id=st.just("7"),
    status=st.sampled_from(STATUSES),
    is_retryable=st.booleans(),
    silent=st.booleans(),
    phase=st.sampled_from(PHASES),
    attempt_id=st.sampled_from((None, "a1")),
    active_index=st.sampled_from((None, None, 0, 2)),
    missing=st.sampled_from((0, 1, 2)),
    stored=st.sampled_from((0, 1, 2, 3)),
    effects=st.lists(effects, max_size=3).map(tuple),
    checks=st.sampled_from((0, 1, 1000)),
    recoveries=st.sampled_from((0, 2, 3, 1000)),
    run=runs,
)


def judged(*calls: Effect, **columns: Any) -> Verdict:
    """What is decided of a running, silent session with two images stored, with these things otherwise."""
    return decide(replace(SEEN, effects=calls, **columns), LIMITS)


def next_image_may_be_repeated(session: Evidence, call: Effect) -> bool:
    """Whether a call of the journal is not proved, or covers what would be made next."""
    if call.state == "void":
        return False
    settled = call.state == "applied" or (call.state == "pending" and call.own)
    covered = any(
        call.first_index <= index < call.first_index + call.count for index in (session.missing, session.stored)
    )
    return not (settled and call.stored) or covered


def may_have_called(session: Evidence) -> bool:
    """Whether the evidence leaves it open that a call began: said again here, not asked of the code."""
    if session.run is not None and session.run.effect == "begun" and session.run.on_lost != "redispatch":
        return True
    if session.status != "running":
        return False
    proved = session.phase in ("running", "candidate_saved") or (session.phase is None and session.attempt_id is None)
    repeated = any(next_image_may_be_repeated(session, call) for call in session.effects)
    return session.active_index is not None or not proved or repeated


@pytest.mark.parametrize("phase", ["running", "candidate_saved"])
def test_between_two_calls_it_is_sent_out_again(phase: str) -> None:
    verdict = judged(APPLIED, phase=phase)
    assert (verdict.decision, verdict.after, verdict.charged) == (Decision.REDISPATCH, "queued", True)
    assert [change.name for change in verdict.changes] == ["requeue"]
    assert verdict.stage is not None
    assert (verdict.stage.aggregate_id, verdict.stage.payload) == ("7", {"task_id": "7"})


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"active_index": 2}, "image 2 was being made"),
        ({"active_index": 0}, "image 0 was being made"),
        ({"phase": None}, "phase None"),
        ({"phase": "provider_call"}, "phase 'provider_call'"),
        ({"phase": "of tomorrow"}, "phase 'of tomorrow'"),
        ({"attempt_id": None, "phase": "provider_call"}, "phase 'provider_call'"),
        ({"attempt_id": None, "phase": None, "active_index": 0}, "image 0 was being made"),
    ],
)
def test_image_in_the_making_or_another_phase_is_unknown(columns: dict[str, Any], why: str) -> None:
    verdict = judged(APPLIED, **columns)
    assert (verdict.decision, verdict.after, verdict.stage) == (Decision.OUTCOME_UNKNOWN, "unknown", None)
    assert [change.name for change in verdict.changes] == ["lose"]
    assert why in verdict.reason


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (replace(APPLIED, state="pending", stored=False), "the call for images 0 to 1 is pending"),
        (replace(APPLIED, state="pending", own=False), "the call for images 0 to 1 is pending (of another attempt)"),
        (replace(APPLIED, state="unknown"), "the call for images 0 to 1 is unknown"),
        (replace(APPLIED, state="unknown", own=False, stored=False), "is unknown (of another attempt)"),
        (replace(APPLIED, count=3, stored=False), "images 0 to 2 is applied, and not all of it is stored"),
        (replace(APPLIED, first_index=2, count=1, stored=False), "image 2 is applied, and not all of it is stored"),
        (replace(APPLIED, first_index=9, stored=False), "is applied, and not all of it is stored"),
    ],
)
def test_call_that_is_not_proved_is_unknown(call: Effect, why: str) -> None:
    verdict = judged(APPLIED, call)
    assert verdict.decision is Decision.OUTCOME_UNKNOWN
    assert why in verdict.reason


def test_call_over_what_a_counting_worker_takes_for_the_next_is_unknown() -> None:
    """Images 0 and 2 are stored: a worker that counts them goes on with 2."""
    verdict = judged(replace(APPLIED, first_index=2, count=1), missing=1, stored=2)
    assert verdict.decision is Decision.OUTCOME_UNKNOWN
    assert "covers image 2, which is next" in verdict.reason


def test_gap_that_no_call_touches_is_filled() -> None:
    assert judged(replace(APPLIED, count=1), missing=1, stored=2).decision is Decision.REDISPATCH


@pytest.mark.parametrize("call", [replace(APPLIED, state="void", stored=False), replace(APPLIED, state="pending")])
def test_void_call_and_one_that_is_repaired_do_not_stand_in_the_way(call: Effect) -> None:
    assert judged(call).decision is Decision.REDISPATCH


@pytest.mark.parametrize("phase", [None, "running", "candidate_saved"])
def test_running_without_an_attempt_is_sent_out_again(phase: str | None) -> None:
    assert judged(attempt_id=None, phase=phase).decision is Decision.REDISPATCH


@pytest.mark.parametrize("stored", [4, 9])
def test_session_with_all_its_images_or_more_is_sent_out_to_be_ended(stored: int) -> None:
    call = replace(APPLIED, count=stored)
    assert judged(call, missing=stored, stored=stored).decision is Decision.REDISPATCH


def test_running_is_legal_until_it_is_silent() -> None:
    assert judged(silent=False, active_index=2).decision is Decision.STILL_RUNNING
    assert judged(silent=False, attempt_id=None).decision is Decision.STILL_RUNNING


def test_queued_without_an_envelope_is_sent_out_as_it_is() -> None:
    call = replace(APPLIED, state="pending", stored=False)
    verdict = judged(call, status="queued", phase="provider_call", active_index=2, recoveries=99, silent=False)
    assert (verdict.decision, verdict.changes, verdict.charged) == (Decision.REDISPATCH, (), False)


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in ("queued", "running")])
def test_ended_has_moved_on_and_its_past_is_forgotten(status: str) -> None:
    verdict = judged(status=status)
    assert (verdict.decision, verdict.forget) == (Decision.MOVED_ON, True)


def test_what_no_machine_may_touch_has_moved_on_and_is_remembered() -> None:
    verdict = judged(is_retryable=False, active_index=2)
    assert (verdict.decision, verdict.forget) == (Decision.MOVED_ON, False)


@pytest.mark.parametrize("status", ["queued", "running"])
@pytest.mark.parametrize("envelope", ["pending", "held", "sent"])
def test_envelope_on_its_way_is_looked_after_there(status: str, envelope: str) -> None:
    assert judged(status=status, active_index=2, run=Run(id=1, status=envelope)).decision is Decision.MOVED_ON


@pytest.mark.parametrize("status", ["queued", "running"])
def test_live_lease_keeps_it_whatever_its_age(status: str) -> None:
    verdict = judged(status=status, active_index=2, run=Run(id=1, status="running", alive=True))
    assert verdict.decision is Decision.STILL_RUNNING


def test_ended_lease_is_believed_at_the_second_look() -> None:
    first = judged(active_index=2, run=replace(LOST, confirmed=False))
    assert (first.decision, first.wait_s) == (Decision.STILL_RUNNING, 5.0)
    assert judged(active_index=2, run=LOST).decision is Decision.OUTCOME_UNKNOWN
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
    assert judged(recoveries=99, active_index=2).decision is Decision.OUTCOME_UNKNOWN


@given(seen)
@settings(max_examples=1000)
def test_every_combination_gets_a_decision_that_changes_what_it_says(session: Evidence) -> None:
    """An end is always unknown, for a person; what is looked after elsewhere is never changed."""
    verdict = decide(session, LIMITS)
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
def test_nothing_is_sent_out_whose_call_may_have_begun(session: Evidence) -> None:
    if may_have_called(session):
        assert decide(session, LIMITS).decision is not Decision.REDISPATCH


def test_each_decision_is_reached_by_the_product_of_what_decides_and_none_repeats_a_call() -> None:
    """Exhaustive where hypothesis samples: one of each kind of run, at most one effect."""
    kept = [Run(id=1, status=status) for status in ("sent", "running", "dead", "unknown")]
    gone = [LOST, replace(LOST, effect="begun"), replace(LOST, effect="begun", on_lost="redispatch")]
    calls = [
        Effect(state=state, first_index=first, count=1, own=own, stored=stored)
        for state, first, own, stored in product(STATES, (0, 2), (False, True), (False, True))
    ]
    reached: set[Decision] = set()
    for status, silent, phase, attempt, index, recoveries, run, call in product(
        ("queued", "running", "failed"),
        (False, True),
        (None, "running", "provider_call"),
        (None, "a1"),
        (None, 2),
        (0, 3),
        (None, *kept, *gone),
        (None, *calls),
    ):
        columns = {"status": status, "silent": silent, "phase": phase, "attempt_id": attempt, "active_index": index}
        session = replace(SEEN, **columns, recoveries=recoveries, run=run, effects=(call,) if call else ())
        decision = decide(session, LIMITS).decision
        assert decision is not Decision.REDISPATCH or not may_have_called(session), session
        reached.add(decision)
    assert reached == set(Decision)


def test_evidence_is_read_from_the_row_by_name() -> None:
    row = asdict(replace(SEEN, effects=(APPLIED,))) | {"effects": [asdict(APPLIED)], "more": 1}
    assert evidence(row, LOST) == replace(SEEN, effects=(APPLIED,), run=LOST)
