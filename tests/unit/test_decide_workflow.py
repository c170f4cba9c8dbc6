"""decide and decide_turn of workflow: every row of the table by name, and total over everything evidence may be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.domains.decisions import Decision, Limits, Run, Verdict
from pfsup.domains.workflow.decide import Evidence, Node, Waiting, decide, decide_turn

LIMITS = Limits(stale_after_s=1800, max_recoveries=5, interval_s=10, takeover_grace_s=5)
STATUSES = ("queued", "running", "succeeded", "failed", "cancelled", "unknown")
LIVE = ("pending", "held", "sent", "running", "dead", "unknown")
SAFE = (None, "claimed", "prepared")
CALLED = ("provider_call", "result_received", "", "CLAIMED", "a phase of tomorrow")

RUNS = st.none() | st.builds(
    Run,
    id=st.just(7),
    status=st.sampled_from(LIVE),
    alive=st.booleans(),
    effect=st.sampled_from(("none", "begun", "done", "void", "unknown")),
    on_lost=st.sampled_from(("unknown", "redispatch")),
    last_error=st.none() | st.just("the broker refused it"),
    confirmed=st.booleans(),
)
NODES = st.builds(
    Node,
    id=st.uuids().map(str),
    node=st.just("n"),
    phase=st.sampled_from(SAFE + CALLED),
    silent=st.booleans(),
    called=st.booleans(),
)
COUNTS = st.integers(0, 3)
RECOVERIES = st.sampled_from((0, 4, 5, 6))
EVIDENCE = st.builds(
    Evidence,
    id=st.just("r"),
    status=st.sampled_from(STATUSES),
    lease_alive=st.booleans(),
    nodes=COUNTS,
    queued=COUNTS,
    unknown=COUNTS,
    running=st.lists(NODES, max_size=4, unique_by=lambda node: node.id).map(tuple),
    checks=COUNTS,
    recoveries=RECOVERIES,
    run=RUNS,
)
WAITING = st.builds(
    Waiting,
    id=st.just("r"),
    status=st.sampled_from(STATUSES),
    behind=st.none() | st.just("another"),
    first=st.booleans(),
    checks=COUNTS,
    recoveries=RECOVERIES,
    run=RUNS,
)
LOST = Run(id=7, status="running", confirmed=True)


def node(number: str = "n1", phase: str | None = "claimed", *, silent: bool = True, called: bool = False) -> Node:
    return Node(id=number, node=number, phase=phase, silent=silent, called=called)


def seen(*running: Node, **more: Any) -> Evidence:
    """A running run without a lease and an envelope, whose other nodes have succeeded."""
    plain = Evidence(
        id="r",
        status="running",
        lease_alive=False,
        nodes=3,
        queued=0,
        unknown=0,
        running=running,
        checks=1,
        recoveries=0,
    )
    return replace(plain, **more)


def changes(verdict: Verdict) -> dict[str, Any]:
    """What the verdict changes: the nodes, or the run's end, by the statement's name."""
    return {change.name: change.params.get("nodes", change.params.get("becomes")) for change in verdict.changes}


@pytest.mark.parametrize("phase", SAFE)
def test_silent_node_before_its_call_is_queued_again_and_the_run_sent_out(phase: str | None):
    verdict = decide(seen(node(phase=phase)), LIMITS)
    assert (verdict.decision, verdict.after, verdict.charged) == (Decision.REDISPATCH, "running", True)
    assert changes(verdict) == {"requeue_nodes": ["n1"], "release": None}
    assert verdict.stage is not None
    assert (verdict.stage.aggregate_id, verdict.stage.payload) == ("r", {"run_id": "r"})


@pytest.mark.parametrize("phase", CALLED)
def test_silent_node_after_its_call_closes_a_run_without_work(phase: str):
    verdict = decide(seen(node(phase=phase)), LIMITS)
    assert (verdict.decision, verdict.after) == (Decision.OUTCOME_UNKNOWN, "unknown")
    assert changes(verdict) == {"lose_nodes": ["n1"], "close": "unknown"}


@pytest.mark.parametrize("more", [{"queued": 1}, {"running": (node("n1", "provider_call"), node("n2"))}])
def test_silent_node_after_its_call_leaves_the_work_of_the_others(more: dict[str, Any]):
    verdict = decide(seen(node("n1", "provider_call"), **more), LIMITS)
    assert verdict.decision is Decision.REDISPATCH
    assert changes(verdict)["lose_nodes"] == ["n1"]


@pytest.mark.parametrize("more", [{"queued": 2}, {}, {"unknown": 1}, {"nodes": 0}])
def test_run_with_no_node_running_is_sent_out(more: dict[str, Any]):
    verdict = decide(seen(**more), LIMITS)
    assert verdict.decision is Decision.REDISPATCH
    assert changes(verdict) == {"release": None}


def test_run_whose_nodes_are_not_silent_is_still_running():
    assert decide(seen(node(silent=False), queued=1), LIMITS).decision is Decision.STILL_RUNNING


def test_node_that_is_not_silent_is_left_while_the_silent_ones_are_judged():
    verdict = decide(seen(node(), node("n2", silent=False)), LIMITS)
    assert changes(verdict) == {"requeue_nodes": ["n1"], "release": None}


def test_lost_worker_leaves_all_its_nodes_to_be_judged_whatever_their_silence():
    verdict = decide(seen(node(silent=False), node("n2", "provider_call", silent=False), run=LOST), LIMITS)
    assert changes(verdict) == {"requeue_nodes": ["n1"], "lose_nodes": ["n2"], "release": None}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"lease_alive": True}, "its lease is alive again"),
        *(({"status": s}, f"it is {s}") for s in STATUSES if s[0] != "r"),
    ],
)
def test_lease_alive_again_or_no_longer_running_has_moved_on(more: dict[str, Any], why: str):
    verdict = decide(seen(node(), **more), LIMITS)
    assert (verdict.decision, verdict.reason, verdict.changes) == (Decision.MOVED_ON, why, ())
    assert verdict.forget is (more.get("status", "queued") != "queued")


@pytest.mark.parametrize("status", ["dead", "unknown"])
def test_end_of_the_envelope_makes_the_run_and_its_running_nodes_unknown(status: str):
    run = Run(id=7, status=status, last_error="the stream refused it")
    verdict = decide(seen(node(silent=False), queued=1, run=run), LIMITS)
    assert changes(verdict) == {"lose_nodes": ["n1"], "close": "unknown"}
    assert "the stream refused it" in verdict.reason


def test_effect_begun_in_the_envelopes_journal_makes_the_run_unknown():
    verdict = decide(seen(node(), queued=1, run=replace(LOST, effect="begun")), LIMITS)
    assert verdict.decision is Decision.OUTCOME_UNKNOWN
    assert changes(verdict) == {"lose_nodes": ["n1"], "close": "unknown"}


@pytest.mark.parametrize(
    ("running", "more", "decision", "end"),
    [
        ((), {"queued": 1}, Decision.GIVE_UP, "failed"),
        ((), {"nodes": 0}, Decision.GIVE_UP, "failed"),
        ((node(),), {}, Decision.GIVE_UP, "failed"),
        ((node(phase="provider_call"),), {"queued": 1}, Decision.OUTCOME_UNKNOWN, "unknown"),
        ((), {"unknown": 1, "queued": 1}, Decision.OUTCOME_UNKNOWN, "unknown"),
    ],
)
def test_run_over_its_recoveries_fails_and_hides_no_unproved_call(
    running: tuple[Node, ...], more: dict[str, Any], decision: Decision, end: str
):
    verdict = decide(seen(*running, recoveries=5, **more), LIMITS)
    assert (verdict.decision, verdict.after, changes(verdict)["close"]) == (decision, end, end)


def test_run_over_its_recoveries_waits_for_the_silence_of_its_last_node():
    verdict = decide(seen(node(), node("n2", silent=False), recoveries=5), LIMITS)
    assert verdict.decision is Decision.STILL_RUNNING


def waits(**more: Any) -> Waiting:
    plain = Waiting(id="r", status="queued", behind=None, first=True, checks=1, recoveries=0)
    return replace(plain, **more)


@pytest.mark.parametrize("run", [None, LOST])
def test_first_queued_run_of_a_free_graph_becomes_its_running_one(run: Run | None):
    verdict = decide_turn(waits(run=run), LIMITS)
    assert (verdict.decision, verdict.after, verdict.charged) == (Decision.REDISPATCH, "running", False)
    assert list(changes(verdict)) == ["promote"]
    assert verdict.changes[0].raced


@pytest.mark.parametrize("more", [{"behind": "another"}, {"first": False}, {"status": "running"}])
def test_queued_run_whose_turn_it_is_not_has_moved_on(more: dict[str, Any]):
    verdict = decide_turn(waits(**more), LIMITS)
    assert (verdict.decision, verdict.forget) == (Decision.MOVED_ON, False)


@pytest.mark.parametrize("status", ["pending", "held", "sent", "dead", "unknown"])
def test_queued_run_that_has_an_envelope_keeps_it(status: str):
    assert decide_turn(waits(run=Run(id=7, status=status)), LIMITS).decision is Decision.MOVED_ON


def test_queued_run_whose_lost_envelope_began_an_effect_is_unknown():
    verdict = decide_turn(waits(run=replace(LOST, effect="begun")), LIMITS)
    assert changes(verdict) == {"close": "unknown"}


@given(EVIDENCE)
def test_decide_has_an_answer_and_touches_only_what_it_may(evidence: Evidence):
    """A node whose call may have begun is never queued again; a run that ends leaves no node running."""
    verdict = decide(evidence, LIMITS)
    made = changes(verdict)
    again, lost = made.get("requeue_nodes", []), made.get("lose_nodes", [])
    by_id = {node.id: node for node in evidence.running}
    assert all(by_id[number].phase in SAFE and not by_id[number].called for number in again)
    assert not set(again) & set(lost)
    if evidence.run is None:
        assert all(by_id[number].silent for number in [*again, *lost])
    if "close" in made:
        assert set(again) | set(lost) == set(by_id)
    if made.get("close") == "failed":
        assert not lost
        assert not evidence.unknown
    assert (verdict.stage is not None) == (verdict.decision is Decision.REDISPATCH)


@given(EVIDENCE)
def test_decide_never_takes_what_is_in_somebodys_hands(evidence: Evidence):
    """Nothing is changed under a live lease, before the second look, or while the envelope is looked after."""
    run = evidence.run
    in_hands = (
        evidence.status != "running"
        or evidence.lease_alive
        or (run is not None and run.status in ("pending", "held", "sent"))
        or (run is not None and run.status == "running" and (run.alive or not run.confirmed))
    )
    verdict = decide(evidence, LIMITS)
    assert not (in_hands and (verdict.changes or verdict.stage))


@given(EVIDENCE, WAITING)
def test_effect_begun_and_not_allowed_again_is_never_sent_out(evidence: Evidence, waiting: Waiting):
    verdicts = [(evidence.run, decide(evidence, LIMITS)), (waiting.run, decide_turn(waiting, LIMITS))]
    for run, verdict in verdicts:
        assert not (run is not None and run.uncertain and verdict.decision is Decision.REDISPATCH)


@given(EVIDENCE)
def test_run_over_its_recoveries_is_never_sent_out(evidence: Evidence):
    verdict = decide(evidence, LIMITS)
    assert not (verdict.decision is Decision.REDISPATCH and evidence.recoveries >= LIMITS.max_recoveries)


@given(WAITING)
def test_turn_is_only_given_to_the_first_of_a_free_graph(waiting: Waiting):
    if decide_turn(waiting, LIMITS).changes:
        assert (waiting.status, waiting.behind, waiting.first) == ("queued", None, True)


def every_run() -> list[Run | None]:
    """No envelope, and one of each kind that a decision can tell apart."""
    flags = product((True, False), (True, False), ("none", "begun"), ("unknown", "redispatch"))
    kinds = [
        Run(id=7, status=status, alive=alive, confirmed=confirmed, effect=effect, on_lost=on_lost)
        for status, (alive, confirmed, effect, on_lost) in product(LIVE, list(flags))
    ]
    return [None, *kinds]


def test_every_decision_about_a_running_run_is_reached():
    nodes = ((), (node(),), (node(phase="provider_call"),), (node(silent=False),))
    reached = {
        decide(seen(*running, status=status, lease_alive=lease, recoveries=cost, run=run), LIMITS).decision
        for running, status, lease, cost, run in product(nodes, STATUSES, (True, False), (0, 5), every_run())
    }
    assert reached == set(Decision)


def test_every_decision_about_a_turn_but_to_give_up_is_reached():
    reached = {
        decide_turn(waits(status=status, behind=behind, first=first, run=run), LIMITS).decision
        for status, behind, first, run in product(STATUSES, (None, "another"), (True, False), every_run())
    }
    assert reached == set(Decision) - {Decision.GIVE_UP}
