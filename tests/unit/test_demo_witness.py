"""The demo's proof sees every way in which pfsup could break its word."""

from __future__ import annotations

from typing import Any

import pytest
from pfsup.supervisor.demo.books import Standing, Waits
from pfsup.supervisor.demo.boundaries import Boundary
from pfsup.supervisor.demo.kills import Kill
from pfsup.supervisor.demo.product_proof import Asked, prove_product
from pfsup.supervisor.demo.summary import Summary
from pfsup.supervisor.demo.waits import percentiles
from pfsup.supervisor.demo.witness import Commit, Execution, Proof, prove


def order(number: int) -> Commit:
    """A committed plain order."""
    return Commit(number, f"order-{number}", 1, False)


def done(number: int, *, dispatch: int | None = None) -> Execution:
    """An execution of a plain order."""
    return Execution(f"order-{number}", 1, dispatch or number)


def wish(commit_id: int, version: int) -> Commit:
    """A committed wish for delivery job 7."""
    return Commit(commit_id, "job-7", version, True)


def delivery(version: int, *, dispatch: int) -> Execution:
    """A run of delivery job 7 that saw this version."""
    return Execution("job-7", version, dispatch)


def test_each_order_executed_once_holds():
    assert prove([order(1), order(2)], [done(2), done(1)]).holds


def test_no_commits_and_no_executions_hold():
    assert prove([], []).holds


def test_order_without_execution_is_lost():
    proof = prove([order(1), order(2)], [done(1)])
    assert (proof.lost, proof.holds) == ((2,), False)


@pytest.mark.parametrize("dispatch", [1, 99])
def test_order_executed_twice_is_twice_whatever_envelope_carried_it(dispatch: int):
    proof = prove([order(1)], [done(1), done(1, dispatch=dispatch)])
    assert (proof.twice, proof.holds) == ((("order-1", 2),), False)


def test_execution_of_an_order_that_was_rolled_back_is_uncommitted():
    proof = prove([order(1)], [done(1), done(2)])
    assert (proof.uncommitted, proof.holds) == (("order-2",), False)


def test_wish_is_met_by_a_run_that_saw_a_later_one():
    assert prove([wish(1, 1), wish(2, 2), wish(3, 3)], [delivery(3, dispatch=1)]).holds


def test_wish_after_the_last_run_is_lost():
    assert prove([wish(1, 1), wish(2, 2), wish(3, 3)], [delivery(2, dispatch=1)]).lost == (3,)


def test_second_run_of_the_newest_wish_by_another_envelope_is_no_offence():
    """A wish that arrives between the begin of a run and its look at the job is met now, and its own run follows."""
    assert prove([wish(1, 1), wish(2, 2)], [delivery(2, dispatch=1), delivery(2, dispatch=2)]).holds


def test_one_envelope_of_a_delivery_job_settled_twice_is_twice():
    proof = prove([wish(1, 1)], [delivery(1, dispatch=5), delivery(1, dispatch=5)])
    assert proof.twice == (("job-7 (dispatch 5)", 2),)


def test_run_that_saw_a_version_nobody_committed_is_uncommitted():
    assert prove([wish(1, 1)], [delivery(2, dispatch=1)]).uncommitted == ("job-7",)


def summary_of(proof: Proof, **changes: Any) -> Summary:
    """A summary with this proof."""
    counts = dict.fromkeys(Standing.__slots__, 0)
    waits = Waits(staged_to_sent=percentiles([1.0]), sent_to_started=percentiles([]))
    nothing = prove_product([], calls={}, hollow=[], kills=[])
    known: dict[str, Any] = {"product": nothing, "kills": dict.fromkeys(Boundary, 1), "recovered": {}} | changes
    return Summary(standing=Standing(**counts), waits=waits, proof=proof, **known)


def test_summary_holds_only_when_the_proof_does():
    assert summary_of(prove([order(1)], [done(1)])).holds
    assert not summary_of(prove([order(1)], [])).holds


def test_summary_fails_when_a_program_did_not_end_as_asked():
    told = summary_of(prove([], []), ends=("pfsup ended with exit code 4",))
    assert not told.holds
    assert "BROKEN: pfsup ended with exit code 4" in told.as_lines()


def test_summary_counts_what_was_lost_and_done_twice():
    told = summary_of(prove([order(1), order(2)], [done(1), done(1)])).as_json()
    assert (told["committed"], told["executed"], told["lost"], told["twice"], told["ok"]) == (2, 2, 1, 1, False)
    assert told["waits_ms"]["staged_to_sent"] == {"p50": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0}


def test_summary_names_offences_but_not_thousands_of_them():
    lines = summary_of(prove([order(n) for n in range(1000)], [])).as_lines()
    assert sum(line.startswith("LOST:") for line in lines) == 5
    assert lines[-1] == "FAILED: lost 1000, twice 0"


def test_verdict_says_how_many_orders_were_proved():
    assert summary_of(prove([order(1)], [done(1)])).as_lines()[-1] == (
        "ok: lost 0, twice 0: each of 1 committed orders was executed, none of them twice"
        " (0 unknown: a person decides); 0 rows of five domains came to their end, no call outside was repeated"
    )


def test_order_whose_outcome_nobody_can_prove_is_not_lost():
    proof = prove([order(1), order(2)], [done(1)], unknown={"order-2"})
    assert (proof.lost, proof.unknown, proof.holds) == ((), 1, True)


def test_unknown_order_that_was_executed_all_the_same_is_an_offence():
    proof = prove([order(1)], [done(1)], unknown={"order-1"})
    assert proof.twice == (("order-1", 1),)


def test_boundary_at_which_no_worker_died_fails_the_demo():
    told = summary_of(prove([], []), kills=dict.fromkeys(Boundary, 1) | {Boundary.READ: 0})
    assert not told.holds
    assert "NOT KILLED: no worker died at read" in told.as_lines()


ENDED = [Asked("delivery", "1", "succeeded"), Asked("agent", "2", "unknown")]


def test_rows_that_came_to_their_end_hold():
    proof = prove_product(ENDED, calls={("2", 0): 1}, hollow=[], kills=[Kill(Boundary.EFFECT_BEGUN, "agent", "2")])
    assert proof.holds
    assert (proof.counts["delivery"]["succeeded"], proof.counts["agent"]["unknown"]) == (1, 1)


@pytest.mark.parametrize("status", ["queued", "running", None])
def test_row_that_has_not_ended_or_is_gone_is_open(status: str | None):
    assert len(prove_product([Asked("delivery", "1", status)], calls={}, hollow=[], kills=[]).open) == 1


def test_call_that_was_made_twice_is_repeated():
    proof = prove_product(ENDED, calls={("2", 0): 2, ("3", 0): 1}, hollow=[], kills=[])
    assert proof.repeated == ("2 index 0: 2 calls",)


def test_success_without_a_result_is_hollow():
    assert not prove_product(ENDED, calls={}, hollow=["delivery 1"], kills=[]).holds


def test_row_whose_worker_died_within_its_call_must_be_unknown():
    kill = Kill(Boundary.EFFECT_DONE, "delivery", "1")
    assert prove_product(ENDED, calls={}, hollow=[], kills=[kill]).misplaced
    kill = Kill(Boundary.BEGUN, "delivery", "1")
    assert not prove_product(ENDED, calls={}, hollow=[], kills=[kill]).misplaced
