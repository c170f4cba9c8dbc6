"""decide of agent: every row of DOMAINS.md by name, and that it is total and safe over all that can be stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pfsup.domains.agent import decide, first_turn
from pfsup.domains.agent.decide import Turn, decide_expired, decide_unbound
from pfsup.domains.agent.first_turn import Task
from pfsup.domains.decisions import Decision, Limits, Run, Verdict

LIMITS = Limits(stale_after_s=1800, max_recoveries=3, interval_s=5, takeover_grace_s=5)
STATUSES = (*decide.OPEN, "requires_input", "awaiting_confirmation", *decide.ENDS)
TASK_STATUSES = ("queued", "running", *decide.ENDS)
PHASES = (None, "claimed", "provider_call", "of another version")

ALIVE = Run(id=7, status="running", alive=True)
SUSPECT = Run(id=7, status="running")
LOST = Run(id=7, status="running", confirmed=True)
BEGUN = Run(id=7, status="running", confirmed=True, effect="begun")
DEAD = Run(id=7, status="dead", last_error="refused")
UNKNOWN = Run(id=7, status="unknown", last_error="nobody knows")
SENT = Run(id=7, status="sent")

OWNED = Turn(
    id="t1", status="running", phase="claimed", owned=True, expired=True, answered=False, needs_worker=False,
    ended=None, unproved=(), checks=1, recoveries=0,
)  # fmt: skip
UNBOUND = replace(OWNED, status="queued", phase=None, owned=False, needs_worker=True)
TASK = Task(
    task_id="k1", status="queued", has_conversation=True, turn_id="t1", turn_status="queued", needs_worker=True,
    checks=1, recoveries=0,
)  # fmt: skip

END_UNKNOWN = ["end_turn", "end_task_of_turn", "interrupt", "append_unknown", "reconcile"]
PROJECT = ["end_turn", "end_task_of_turn", "reconcile"]


def said(verdict: Verdict) -> tuple[Decision, str, list[str]]:
    """What was decided, what the turn is after it, and what is changed."""
    return verdict.decision, verdict.after, [change.name for change in verdict.changes]


def expired(**seen: Any) -> Verdict:
    """The judgement of a turn whose owner's lease ended."""
    return decide_expired(replace(OWNED, **seen), LIMITS)


def unbound(**seen: Any) -> Verdict:
    """The judgement of an open turn that nobody owns."""
    return decide_unbound(replace(UNBOUND, **seen), LIMITS)


def task(**seen: Any) -> Verdict:
    """The judgement of a task."""
    return first_turn.decide(replace(TASK, **seen), LIMITS)


# Phase 1: owned turns whose lease ended.


@pytest.mark.parametrize("seen", [{"owned": False}, {"expired": False}])
def test_turn_that_was_let_go_or_prolonged_moved_on(seen: dict[str, bool]) -> None:
    assert said(expired(**seen)) == (Decision.MOVED_ON, "", [])


def test_turn_under_a_live_envelope_is_its_workers_whatever_its_own_lease_says() -> None:
    assert said(expired(run=ALIVE, phase="provider_call", unproved=("e1",))) == (Decision.STILL_RUNNING, "", [])


def test_lost_envelope_is_believed_at_the_second_look() -> None:
    first = expired(run=SUSPECT)
    assert (first.decision, first.wait_s, first.changes) == (Decision.STILL_RUNNING, LIMITS.takeover_grace_s, ())
    assert expired(run=LOST).decision is Decision.REDISPATCH


@pytest.mark.parametrize("end", decide.ENDS)
@pytest.mark.parametrize("status", [*decide.OPEN, "requires_input", "awaiting_confirmation"])
def test_end_in_the_journal_is_projected_and_no_second_one_written(status: str, end: str) -> None:
    verdict = expired(status=status, ended=end, phase="provider_call")
    assert said(verdict) == (Decision.MOVED_ON, end, PROJECT)
    assert verdict.changes[0].params == {"end": end}


def test_lost_envelope_of_an_ended_turn_is_settled_by_a_worker_that_finds_nothing_to_do() -> None:
    verdict = expired(ended="succeeded", run=LOST)
    assert said(verdict) == (Decision.REDISPATCH, "succeeded", PROJECT)
    assert (verdict.stage is not None, verdict.charged) == (True, False)


@pytest.mark.parametrize("seen", [{"run": BEGUN}, {"run": LOST, "unproved": ("e1",)}])
def test_lost_envelope_of_an_ended_turn_with_an_unproved_call_is_for_a_person(seen: dict[str, Any]) -> None:
    verdict = expired(ended="succeeded", **seen)
    assert said(verdict) == (Decision.OUTCOME_UNKNOWN, "succeeded", PROJECT)
    assert verdict.stage is None


@pytest.mark.parametrize("status", ["requires_input", "awaiting_confirmation"])
@pytest.mark.parametrize("run", [None, SENT, DEAD, UNKNOWN])
def test_turn_that_waits_for_a_person_only_loses_the_lease(status: str, run: Run | None) -> None:
    verdict = expired(status=status, phase="asked", unproved=("e1",), run=run)
    assert said(verdict) == (Decision.MOVED_ON, status, ["collect"])
    assert verdict.wait_s == 0.0, "the answer may come the next moment"


def test_lost_envelope_of_a_turn_that_waits_is_put_back_in_line() -> None:
    assert said(expired(status="requires_input", run=LOST)) == (Decision.REDISPATCH, "requires_input", ["collect"])
    assert said(expired(status="requires_input", run=BEGUN)) == (
        Decision.OUTCOME_UNKNOWN,
        "requires_input",
        ["collect"],
    )


@pytest.mark.parametrize("status", decide.ENDS)
def test_owner_left_on_a_turn_that_is_over_is_taken_away(status: str) -> None:
    assert said(expired(status=status)) == (Decision.MOVED_ON, status, ["collect", "reconcile"])


@pytest.mark.parametrize("run", [None, SENT, LOST])
@pytest.mark.parametrize(
    ("seen", "after"),
    [
        ({"status": "queued", "phase": None}, "queued"),
        ({"status": "running", "phase": "claimed"}, "queued"),
        ({"status": "cancel_requested", "phase": "claimed"}, "cancel_requested"),
        ({"status": "requires_input", "answered": True, "phase": "asked"}, "requires_input"),
    ],
)
def test_turn_that_its_worker_had_not_begun_is_left_for_a_restart(
    seen: dict[str, Any], after: str, run: Run | None
) -> None:
    verdict = expired(run=run, **seen)
    assert said(verdict) == (Decision.REDISPATCH, after, ["release"])
    assert (verdict.charged, verdict.stage and verdict.stage.payload) == (True, {"turn_id": "t1"})


@pytest.mark.parametrize("run", [DEAD, UNKNOWN, replace(SENT, status="held")])
def test_queued_turn_with_an_envelope_that_a_person_holds_is_released_and_not_staged(run: Run) -> None:
    verdict = expired(status="queued", run=run)
    assert (said(verdict), verdict.stage) == ((Decision.MOVED_ON, "queued", ["release"]), None)


@pytest.mark.parametrize(("run", "decision"), [(DEAD, Decision.GIVE_UP), (UNKNOWN, Decision.OUTCOME_UNKNOWN)])
def test_end_of_the_envelope_is_the_turns_unknown(run: Run, decision: Decision) -> None:
    assert said(expired(run=run)) == (decision, "unknown", END_UNKNOWN)
    assert str(run.last_error) in expired(run=run).reason


@pytest.mark.parametrize("phase", [None, "provider_call", "of another version"])
@pytest.mark.parametrize("status", ["running", "cancel_requested"])
def test_turn_in_a_phase_that_proves_nothing_is_unknown(status: str, phase: str | None) -> None:
    assert said(expired(status=status, phase=phase)) == (Decision.OUTCOME_UNKNOWN, "unknown", END_UNKNOWN)


def test_unproved_call_makes_even_a_claimed_turn_unknown_and_is_named() -> None:
    verdict = expired(unproved=tuple(f"e{n}" for n in range(12)))
    assert said(verdict) == (Decision.OUTCOME_UNKNOWN, "unknown", END_UNKNOWN)
    assert "e0, e1," in verdict.reason
    assert "e11" not in verdict.reason


def test_recoveries_are_bounded() -> None:
    assert said(expired(recoveries=2))[0] is Decision.REDISPATCH
    assert said(expired(recoveries=3)) == (Decision.GIVE_UP, "unknown", END_UNKNOWN)


# Phase 2: queued tasks without a first turn.


def test_first_turn_is_named_on_its_task_and_staged() -> None:
    verdict = task()
    assert said(verdict) == (Decision.REDISPATCH, "queued", ["name_first_turn"])
    assert verdict.stage is not None
    assert (verdict.stage.aggregate_id, verdict.stage.payload) == ("t1", {"turn_id": "t1"})


def test_task_whose_conversation_is_gone_is_given_up_as_unknown() -> None:
    assert said(task(turn_id=None, has_conversation=False)) == (Decision.GIVE_UP, "unknown", ["end_task"])


def test_observer_says_that_a_turn_would_be_made() -> None:
    assert said(task(turn_id=None)) == (Decision.REDISPATCH, "queued", [])


@pytest.mark.parametrize("seen", [{"run": SENT}, {"run": DEAD}, {"needs_worker": False, "turn_status": "running"}])
def test_first_turn_that_somebody_looks_after_is_left_to_them(seen: dict[str, Any]) -> None:
    assert said(task(**seen)) == (Decision.MOVED_ON, "", [])


@pytest.mark.parametrize("status", TASK_STATUSES[1:])
def test_task_that_is_queued_no_longer_moved_on(status: str) -> None:
    verdict = task(status=status)
    assert (said(verdict), verdict.forget) == ((Decision.MOVED_ON, "", []), status != "running")


# Phase 3: open turns that nobody owns.


@pytest.mark.parametrize(
    "seen",
    [{"status": status} for status in decide.OPEN] + [{"status": "requires_input", "answered": True}],
)
@pytest.mark.parametrize("run", [None, LOST])
def test_turn_that_needs_a_worker_is_staged_as_it_is(seen: dict[str, Any], run: Run | None) -> None:
    verdict = unbound(run=run, **seen)
    assert said(verdict) == (Decision.REDISPATCH, seen["status"], [])
    assert verdict.stage is not None
    assert verdict.charged is (run is LOST or seen["status"] == "running"), "what merely waited costs nothing"


@pytest.mark.parametrize("status", ["requires_input", "awaiting_confirmation", *decide.ENDS])
def test_turn_that_needs_no_worker_moved_on(status: str) -> None:
    verdict = unbound(status=status)
    assert (said(verdict), verdict.forget) == ((Decision.MOVED_ON, "", []), status in decide.ENDS)


def test_turn_that_was_taken_meanwhile_moved_on() -> None:
    assert unbound(owned=True).decision is Decision.MOVED_ON
    assert unbound(needs_worker=False).decision is Decision.MOVED_ON


@pytest.mark.parametrize(
    ("run", "decision"),
    [
        (ALIVE, Decision.STILL_RUNNING),
        (SUSPECT, Decision.STILL_RUNNING),
        (SENT, Decision.MOVED_ON),
        (DEAD, Decision.MOVED_ON),
        (UNKNOWN, Decision.MOVED_ON),
    ],
)
def test_queued_turn_with_an_envelope_is_looked_after_there(run: Run, decision: Decision) -> None:
    assert said(unbound(run=run)) == (decision, "", [])


@pytest.mark.parametrize("status", ["running", "cancel_requested", "requires_input"])
def test_end_of_the_envelope_ends_a_turn_that_began(status: str) -> None:
    assert said(unbound(status=status, answered=True, run=DEAD)) == (Decision.GIVE_UP, "unknown", END_UNKNOWN)
    assert said(unbound(status=status, answered=True, run=UNKNOWN))[0] is Decision.OUTCOME_UNKNOWN


@pytest.mark.parametrize("run", [None, LOST, DEAD])
def test_end_in_the_journal_of_an_unbound_turn_is_projected(run: Run | None) -> None:
    assert said(unbound(ended="failed", needs_worker=False, run=run))[1:] == ("failed", PROJECT)


@pytest.mark.parametrize("seen", [{"unproved": ("e1",), "needs_worker": False}, {"run": BEGUN}])
def test_unbound_turn_with_an_unproved_call_is_unknown(seen: dict[str, Any]) -> None:
    assert said(unbound(**seen)) == (Decision.OUTCOME_UNKNOWN, "unknown", END_UNKNOWN)


def test_turn_over_the_cap_is_unknown_and_not_staged() -> None:
    verdict = unbound(recoveries=3)
    assert (said(verdict), verdict.stage) == ((Decision.GIVE_UP, "unknown", END_UNKNOWN), None)


# Everything that can be stored.

RUNS = st.none() | st.builds(
    Run,
    id=st.just(7),
    status=st.sampled_from(["pending", "held", "sent", "running", "dead", "unknown"]),
    alive=st.booleans(),
    confirmed=st.booleans(),
    effect=st.sampled_from(["none", "begun", "done", "void", "unknown"]),
    on_lost=st.sampled_from(["unknown", "redispatch"]),
    last_error=st.sampled_from([None, "refused"]),
)
TURNS = st.builds(
    Turn,
    id=st.just("t1"),
    status=st.sampled_from(STATUSES),
    phase=st.sampled_from(PHASES),
    owned=st.booleans(),
    expired=st.booleans(),
    answered=st.booleans(),
    needs_worker=st.booleans(),
    ended=st.sampled_from([None, *decide.ENDS]),
    unproved=st.sampled_from([(), ("e1",), ("e1", "event 2")]),
    checks=st.integers(0, 3),
    recoveries=st.integers(0, 4),
    run=RUNS,
)
TASKS = st.builds(
    Task,
    task_id=st.just("k1"),
    status=st.sampled_from(TASK_STATUSES),
    has_conversation=st.booleans(),
    turn_id=st.sampled_from([None, "t1"]),
    turn_status=st.sampled_from([None, *STATUSES]),
    needs_worker=st.booleans(),
    checks=st.integers(0, 3),
    recoveries=st.integers(0, 4),
    run=RUNS,
)
JUDGES = pytest.mark.parametrize("judge", [decide_expired, decide_unbound])
Judge = Callable[[Turn, Limits], Verdict]


@JUDGES
@given(seen=TURNS)
@settings(max_examples=1500, deadline=None)
def test_every_turn_gets_a_decision_that_repeats_and_invents_nothing(judge: Judge, seen: Turn) -> None:
    verdict = judge(seen, LIMITS)
    assert verdict.decision in Decision
    assert verdict.reason
    if seen.doubt:
        assert verdict.decision is not Decision.REDISPATCH, "an outside call may have been made"
        assert verdict.stage is None
    if verdict.after in decide.ENDS:
        assert verdict.after in ("unknown", seen.ended, seen.status), "an end is the journal's, the row's, or unknown"
    ends = [change.params["end"] for change in verdict.changes if change.name == "end_turn"]
    assert set(ends) <= {"unknown", seen.ended}
    if seen.is_over or seen.ended is not None:
        assert "append_unknown" not in [change.name for change in verdict.changes], "the journal has one end"
    if seen.run is not None and seen.run.alive and seen.run.status == "running":
        assert verdict.changes == (), "a worker holds it"


@given(seen=TASKS)
@settings(max_examples=500, deadline=None)
def test_every_task_gets_a_decision_and_only_a_turn_that_needs_a_worker_is_staged(seen: Task) -> None:
    verdict = first_turn.decide(seen, LIMITS)
    assert verdict.decision in (Decision.REDISPATCH, Decision.GIVE_UP, Decision.MOVED_ON)
    assert verdict.after in ("", "queued", "unknown")
    if verdict.stage is not None:
        assert (seen.status, seen.needs_worker, seen.run) == ("queued", True, None)


@JUDGES
def test_each_decision_is_reached(judge: Judge) -> None:
    base = OWNED if judge is decide_expired else UNBOUND
    reached = {
        judge(replace(base, run=run, recoveries=recoveries, owned=owned), LIMITS).decision
        for run in (None, ALIVE, LOST, BEGUN)
        for recoveries in (0, 3)
        for owned in (True, False)
    }
    assert reached == set(Decision)
