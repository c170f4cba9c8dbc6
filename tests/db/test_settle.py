"""settle: what each outcome makes of the row, what repeats and lateness answer, and what it commits with."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from support.database import Database
from support.runs import Begun, Owner, Worker


@pytest.fixture
def run(owner: Owner, worker: Worker) -> Begun:
    return worker.begun(owner.sent())


def state(error: psycopg.Error) -> str:
    return str(error.sqlstate)


@pytest.mark.parametrize("outcome", ["consumed", "rejected", "dead", "unknown"])
def test_final_outcome_ends_the_row_as_named(owner: Owner, worker: Worker, run: Begun, outcome: str) -> None:
    assert worker.settle(run, outcome, "why")[:] == ("ok", outcome, None)
    row = owner.row(run.id)
    assert (row.status, row.attempts, row.last_error, row.lease_token) == (outcome, 0, "why", run.token)
    assert row.finished_at is not None


def test_retry_waits_as_told_and_is_charged(owner: Owner, worker: Worker, run: Begun) -> None:
    answer = worker.settle(run, "retry", "boom", retry_in=90)
    row = owner.row(run.id)
    assert (answer.status, answer.next_at) == ("pending", row.available_at)
    assert (row.attempts, row.last_error, row.sent_at, row.worker, row.lease_token) == (1, "boom", None, None, None)
    assert 89 < owner.value("SELECT extract(epoch FROM %s - clock_timestamp())", row.available_at) < 91


@pytest.mark.parametrize(("failed", "at_most_s"), [(0, 10), (1, 20), (3, 80), (4, 100), (19, 100)])
def test_retry_backs_off_by_the_actors_policy(owner: Owner, worker: Worker, failed: int, at_most_s: int) -> None:
    owner.policy("paint", retry_base="10 s", retry_cap="100 s")
    number = owner.sent(max_attempts=50)
    owner.rows("UPDATE pfsup.async_dispatches SET attempts = %s WHERE id = %s", failed, number)
    run = worker.begun(number)
    now, next_at = owner.value("SELECT clock_timestamp()"), worker.settle(run, "retry").next_at
    assert at_most_s * 0.8 <= (next_at - now).total_seconds() <= at_most_s + 1


def test_back_off_of_tasks_that_failed_together_spreads(owner: Owner, worker: Worker) -> None:
    owner.policy("paint", retry_base="1000 s")
    runs = [worker.begun(owner.sent()) for _ in range(5)]
    assert len({round(worker.settle(run, "retry").next_at.timestamp()) for run in runs}) > 1


def test_longest_back_off_is_one_that_an_interval_holds(owner: Owner, worker: Worker) -> None:
    owner.policy("paint", retry_base="1000 years", retry_cap="2000 years")
    number = owner.sent(max_attempts=1000)
    owner.rows("UPDATE pfsup.async_dispatches SET attempts = 900 WHERE id = %s", number)
    assert worker.settle(worker.begun(number), "retry").status == "pending"


def test_last_attempt_ends_dead(owner: Owner, worker: Worker) -> None:
    run = worker.begun(owner.sent(max_attempts=1))
    assert worker.settle(run, "retry", "boom").status == "dead"
    assert owner.row(run.id).attempts == 1


def test_snooze_charges_nothing(owner: Owner, worker: Worker, run: Begun) -> None:
    assert worker.settle(run, "snooze", retry_in="2 minutes").status == "pending"
    row = owner.row(run.id)
    assert (row.attempts, row.status) == (0, "pending")
    assert owner.value("SELECT count(*) FROM pfsup.audit_log") == 0


def test_snooze_never_ends_a_row_whose_attempts_are_used_up(owner: Owner, worker: Worker) -> None:
    number = owner.sent(max_attempts=1)
    for _ in range(3):
        assert worker.settle(worker.begun(number), "snooze", retry_in=0).status == "pending"
        owner.mark(number)


@pytest.mark.parametrize("outcome", ["retry", "snooze"])
def test_run_with_an_unproved_effect_ends_unknown_instead_of_again(
    owner: Owner, worker: Worker, run: Begun, outcome: str
) -> None:
    worker.effect(run, "begun", ref="r")
    assert worker.settle(run, outcome, retry_in=1).status == "unknown"
    assert owner.row(run.id).effect == "begun"
    assert owner.value("SELECT state FROM pfsup.dispatch_effects") == "unknown"


def test_consumed_with_a_begun_effect_makes_it_done(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun")
    assert worker.settle(run, "consumed").status == "consumed"
    assert owner.row(run.id).effect == "done"
    assert owner.value("SELECT state FROM pfsup.dispatch_effects") == "done"


def test_effect_that_is_done_stays_for_the_next_run(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun")
    worker.effect(run, "done", ref="r7")
    assert worker.settle(run, "retry", retry_in=0).status == "pending"
    assert owner.row(run.id).effect == "done"


@pytest.mark.parametrize("outcome", ["consumed", "rejected", "dead", "unknown", "retry", "snooze"])
def test_same_settle_again_answers_already_and_changes_nothing(
    owner: Owner, worker: Worker, run: Begun, outcome: str
) -> None:
    first = worker.settle(run, outcome, "why", retry_in=60)
    before = owner.row(run.id)
    again = worker.settle(run, outcome, "other", retry_in=1)
    assert (again.verdict, again.status, again.next_at) == ("already", first.status, first.next_at)
    assert owner.row(run.id) == before


def test_same_retry_again_answers_already_when_it_ended_dead(owner: Owner, worker: Worker) -> None:
    run = worker.begun(owner.sent(max_attempts=1))
    worker.settle(run, "retry")
    assert worker.settle(run, "retry").verdict == "already"


def test_same_retry_again_answers_already_while_the_next_run_works(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.settle(run, "retry", retry_in=0)
    owner.mark(run.id)
    second = worker.begun(run.id)
    assert worker.settle(run, "retry").verdict == "already"
    assert owner.row(run.id).lease_token == second.token


@pytest.mark.parametrize(("first", "second"), [("consumed", "rejected"), ("retry", "consumed"), ("dead", "consumed")])
def test_another_settle_after_the_first_is_late(
    owner: Owner, worker: Worker, run: Begun, first: str, second: str
) -> None:
    status = worker.settle(run, first, retry_in=60).status
    with pytest.raises(psycopg.Error) as late:
        worker.settle(run, second)
    assert state(late.value) == "PF412"
    assert owner.status(run.id) == status


def test_settle_revives_a_lease_that_ended_while_nobody_took_the_row(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.expire(run.id)
    assert worker.settle(run, "consumed").verdict == "ok"


def test_late_settle_raises_and_the_business_result_in_its_transaction_is_lost(
    database: Database, owner: Owner, worker: Worker, run: Begun
) -> None:
    owner.rows("CREATE TABLE public.results (id bigint)")
    owner.rows("GRANT INSERT ON public.results TO t_worker")
    owner.take_away(run.id)

    def work() -> None:
        with worker.conn.transaction():
            worker.rows("INSERT INTO public.results VALUES (1)")
            worker.settle(run, "consumed")

    with pytest.raises(psycopg.Error) as late:
        work()
    assert state(late.value) == "PF412"
    assert owner.value("SELECT count(*) FROM public.results") == 0
    assert owner.status(run.id) == "pending"


def test_wrong_token_settles_nothing(owner: Owner, worker: Worker, run: Begun) -> None:
    for token in (uuid4(), None):
        with pytest.raises(psycopg.Error) as late:
            worker.settle(Begun(run.id, token), "consumed")
        assert state(late.value) == "PF412"
    assert owner.status(run.id) == "running"


def test_settle_of_a_row_that_is_gone_says_so(worker: Worker) -> None:
    with pytest.raises(psycopg.Error) as unknown:
        worker.settle(Begun(4711, uuid4()), "consumed")
    assert state(unknown.value) == "PF404"


@pytest.mark.parametrize(
    "call",
    [
        "SELECT pfsup.settle(%s, %s, 'done')",
        "SELECT pfsup.settle(%s, %s, NULL)",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '{\"retry_inn\": 1}')",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '{\"retry_in\": -1}')",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '{\"retry_in\": \"soon\"}')",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '{\"retry_in\": [1]}')",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '{\"retry_in\": 1e300}')",
        "SELECT pfsup.settle(%s, %s, 'retry', NULL, '[]')",
    ],
)
def test_bad_argument_is_refused_with_the_rule(owner: Owner, worker: Worker, run: Begun, call: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        worker.rows(call, *run)
    assert state(refused.value) == "PF400"
    assert str(refused.value).startswith("cannot settle")
    assert owner.status(run.id) == "running"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("a\x1b[31mb\r\nc", "a [31mb c"),
        ("x" * 5000, "x" * 2000),
        ("\n" * 9000, None),
        ("", None),
        ("ü" * 3000, "ü" * 2000),
    ],
)
def test_error_text_is_cut_and_cleaned_and_never_a_reason_to_fail(
    owner: Owner, worker: Worker, run: Begun, error: str, kept: str | None
) -> None:
    assert worker.settle(run, "dead", error).verdict == "ok"
    assert owner.row(run.id).last_error == kept


@pytest.mark.parametrize("outcome", ["retry", "snooze"])
def test_row_that_becomes_pending_wakes_dispatch(database: Database, worker: Worker, run: Begun, outcome: str) -> None:
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        worker.settle(run, outcome, retry_in=3600)
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1


def test_ended_key_with_a_wish_becomes_one_new_envelope_and_wakes_dispatch(
    database: Database, owner: Owner, worker: Worker
) -> None:
    number = owner.sent(key="k")
    run = worker.begun(number)
    for payload in (1, 2, 3):
        owner.stage(key="k", payload=payload)
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        worker.settle(run, "consumed")
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1
    found = owner.rows("SELECT status, payload FROM pfsup.async_dispatches ORDER BY id")
    assert [tuple(row) for row in found] == [("consumed", None), ("pending", 3)]
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


@pytest.mark.parametrize("outcome", ["dead", "unknown", "retry"])
def test_wishes_wait_while_their_key_is_not_free(owner: Owner, worker: Worker, outcome: str) -> None:
    run = worker.begun(owner.sent(key="k"))
    owner.stage(key="k")
    worker.settle(run, outcome, retry_in=60)
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 1
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches") == 1


@pytest.mark.parametrize(
    ("call", "ours", "lifted"),
    [
        ("SELECT pfsup.settle(%s, %s, 'consumed')", "off", "on"),
        ("SELECT pfsup.effect(%s, %s, 'begun')", "off", "on"),
        ("SELECT pfsup.settle(%s, %s, 'consumed')", "local", "local"),
    ],
)
def test_commit_that_must_last_lifts_synchronous_commit_for_its_transaction_only(
    worker: Worker, run: Begun, call: str, ours: str, lifted: str
) -> None:
    worker.rows(f"SET synchronous_commit = {ours}")
    with worker.conn.transaction():
        worker.rows(call, *run)
        assert worker.value("SHOW synchronous_commit") == lifted
    assert worker.value("SHOW synchronous_commit") == ours


def test_straight_path_writes_no_audit_and_a_failed_run_one_line(owner: Owner, worker: Worker) -> None:
    good, bad = worker.begun(owner.sent()), worker.begun(owner.sent())
    worker.settle(good, "consumed")
    assert owner.rows("SELECT FROM pfsup.audit_log") == []
    worker.settle(bad, "retry", "boom")
    line = owner.one("SELECT * FROM pfsup.audit_log")
    assert (line.kind, line.who, line.dispatch_id, line.action) == ("attempt", "w1", bad.id, "retry")
    assert (line.before, line.after, line.reason) == ("running", "pending", "boom")


def test_claim_of_a_late_worker_is_written_down_after_its_transaction_was_lost(
    owner: Owner, worker: Worker, run: Begun
) -> None:
    owner.take_away(run.id)
    with pytest.raises(psycopg.Error):
        worker.settle(run, "consumed")
    assert worker.value("SELECT written FROM pfsup.report_late(%s, %s, 'w1', 'consumed', E'a\\nb')", *run) is True
    line = owner.one("SELECT * FROM pfsup.audit_log WHERE action = 'late'")
    assert (line.who, line.after, line.dispatch_id) == ("w1", "pending", run.id)
    assert line.reason.startswith("worker w1 reported consumed at ")
    assert line.evidence == {"token": str(run.token), "error": "a b"}
    assert owner.status(run.id) == "pending"


def test_claims_of_late_workers_cannot_fill_the_audit(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.take_away(run.id)
    for _ in range(25):
        worker.rows("SELECT pfsup.report_late(%s, %s, 'w1', 'consumed')", *run)
    assert owner.value("SELECT count(*) FROM pfsup.audit_log WHERE action = 'late'") == 20


def test_run_that_holds_its_row_is_not_late(owner: Owner, worker: Worker, run: Begun) -> None:
    assert worker.value("SELECT written FROM pfsup.report_late(%s, %s, 'w1', 'consumed')", *run) is False
    assert worker.value("SELECT written FROM pfsup.report_late(4711, NULL, 'w1', 'consumed')") is False
