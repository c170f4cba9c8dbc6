"""begin_work: rows before → after, each verdict, who waits for whom."""

from __future__ import annotations

import psycopg
import pytest
from support.database import Database
from support.runs import Owner, Worker, owner_of, worker_of


def test_sent_row_begins_with_everything_the_run_needs(owner: Owner, worker: Worker) -> None:
    number = owner.sent(payload={"size": 3}, tenant="t1", headers={"trace": "x"}, max_attempts=4)
    answer = worker.begin(number, source=owner.source())
    assert (answer.verdict, answer.aggregate_id, answer.payload, answer.headers, answer.tenant) == (
        "go", "7", {"size": 3}, {"trace": "x"}, "t1",
    )  # fmt: skip
    assert (answer.attempt, answer.max_attempts, answer.deliveries, answer.recoveries) == (1, 4, 1, 0)
    assert (answer.effect, answer.effect_ref) == ("none", None)
    row = owner.row(number)
    assert (row.status, row.worker, row.lease_token, row.sink_ref) == (
        "running",
        "w1",
        answer.token,
        "pfsup:pfsup:paint 1-1",
    )
    assert row.started_at >= row.sent_at
    assert (row.lease_expires_at - row.started_at).total_seconds() == 30
    assert row.deadline_at == answer.deadline_at


def test_deadline_is_the_actors_max_run_from_now(owner: Owner, worker: Worker) -> None:
    owner.policy("paint", max_run="90 s", lease="5 s")
    number = owner.sent()
    assert worker.one("SELECT verdict FROM pfsup.begin_work(%s, 'paint', 'w1')", number).verdict == "go"
    row = owner.row(number)
    assert (row.deadline_at - row.started_at).total_seconds() == 90
    assert (row.lease_expires_at - row.started_at).total_seconds() == 5


def test_message_that_overtook_its_mark_begins_and_its_delivery_is_counted_once(owner: Owner, worker: Worker) -> None:
    number = owner.stage()
    owner.claim(number)
    claim = owner.row(number).lease_token
    assert worker.begin(number, sink_ref="s 9-9").verdict == "go"
    marked = owner.rows(
        "UPDATE pfsup.async_dispatches SET deliveries = deliveries + 1 WHERE id = %s AND lease_token = %s RETURNING id",
        number, claim,
    )  # fmt: skip
    row = owner.row(number)
    assert not marked, "the mark must not find its claim any more"
    assert (row.status, row.deliveries, row.sink_ref, row.claimed_by) == ("running", 1, "s 9-9", None)
    assert row.sent_at is not None


def test_entry_of_a_past_delivery_does_not_replace_the_present_ones_ref(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    assert worker.begin(number, sink_ref="s 0-1").verdict == "go"
    assert owner.row(number).sink_ref == "pfsup:pfsup:paint 1-1"


def test_duplicate_of_a_running_row_is_taken_even_after_its_lease(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    run = worker.begun(number)
    assert worker.begin(number, worker="w2").verdict == "taken"
    owner.expire(number)
    assert worker.begin(number, worker="w2").verdict == "taken"
    assert owner.row(number).lease_token == run.token


@pytest.mark.parametrize("outcome", ["consumed", "rejected", "dead", "unknown"])
def test_message_of_a_finished_row_is_ended(owner: Owner, worker: Worker, outcome: str) -> None:
    number = owner.sent()
    worker.settle(worker.begun(number), outcome)
    assert worker.begin(number).verdict == "ended"
    assert owner.status(number) == outcome


def test_message_of_a_cancelled_row_is_ended(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    owner.rows("SELECT pfsup.cancel(%s)", number)
    assert worker.begin(number).verdict == "ended"


def test_message_of_a_row_that_waits_again_is_stale(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    worker.settle(worker.begun(number), "snooze", retry_in=0)
    assert worker.begin(number).verdict == "stale"
    assert owner.status(number) == "pending"


def test_message_of_a_held_row_is_stale(owner: Owner, worker: Worker) -> None:
    number = owner.stage()
    owner.rows("UPDATE pfsup.async_dispatches SET status = 'held' WHERE id = %s", number)
    assert worker.begin(number).verdict == "stale"


@pytest.mark.parametrize(("kind", "name"), [("actor", "paint"), ("queue", "slow"), ("tenant", "t1")])
def test_paused_row_goes_back_in_line_uncharged(owner: Owner, worker: Worker, kind: str, name: str) -> None:
    number = owner.sent(queue="slow", tenant="t1")
    due = owner.row(number).available_at
    owner.rows("INSERT INTO pfsup.controls (kind, name, who, why) VALUES (%s, %s, 'me', 'test')", kind, name)
    assert worker.begin(number).verdict == "paused"
    row = owner.row(number)
    assert (row.status, row.attempts, row.deliveries, row.sent_at, row.available_at) == ("pending", 0, 1, None, due)
    owner.rows("UPDATE pfsup.controls SET until = clock_timestamp()")
    owner.mark(number)
    assert worker.begin(number).verdict == "go"


def test_paused_row_whose_message_overtook_the_mark_counts_its_delivery(owner: Owner, worker: Worker) -> None:
    number = owner.stage()
    owner.claim(number)
    owner.rows("INSERT INTO pfsup.controls (kind, name, who, why) VALUES ('actor', 'paint', 'me', 'test')")
    assert worker.begin(number).verdict == "paused"
    row = owner.row(number)
    assert (row.status, row.deliveries, row.lease_token) == ("pending", 1, None)


def test_locked_row_is_busy_and_nobody_waits(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    with owner.conn.transaction():
        owner.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", number)
        worker.rows("SET lock_timeout = '1ms'")
        assert worker.begin(number).verdict == "busy"
    assert worker.begin(number).verdict == "go"


@pytest.mark.parametrize("source", ["other/1", "", "00000000-0000-0000-0000-000000000000/1"])
def test_entry_of_another_source_begins_nothing(owner: Owner, worker: Worker, source: str) -> None:
    number = owner.sent()
    assert worker.begin(number, source=source).verdict == "foreign"
    assert owner.status(number) == "sent"


def test_entry_from_before_a_restore_begins_nothing(owner: Owner, worker: Worker) -> None:
    number, before = owner.sent(), owner.source()
    owner.rows("UPDATE pfsup.meta SET epoch = epoch + 1")
    assert worker.begin(number, source=before).verdict == "foreign"


def test_entry_of_another_actor_begins_nothing(owner: Owner, worker: Worker) -> None:
    number = owner.sent()
    assert worker.begin(number, actor="print").verdict == "foreign"
    assert owner.status(number) == "sent"


def test_unknown_id_is_not_found(worker: Worker) -> None:
    assert worker.begin(4711).verdict == "not_found"


def test_every_answer_but_go_gives_nothing_away(owner: Owner, worker: Worker) -> None:
    number = owner.sent(payload={"secret": 1})
    worker.begun(number)
    assert worker.begin(number)[1:] == (None,) * 12


def test_one_of_many_workers_is_let_in(owner: Owner, database: Database) -> None:
    number = owner.sent()
    with worker_of(database) as one, worker_of(database) as two, one.conn.transaction(), two.conn.transaction():
        verdicts = sorted([one.begin(number, worker="w1").verdict, two.begin(number, worker="w2").verdict])
    assert verdicts == ["busy", "go"]


@pytest.mark.parametrize(
    "call",
    [
        "SELECT pfsup.begin_work(%s, 'paint', 'w1', '0.9 s')",
        "SELECT pfsup.begin_work(%s, 'paint', 'w1', '25 h')",
        "SELECT pfsup.begin_work(%s, 'paint', '')",
        "SELECT pfsup.begin_work(%s, 'paint', E'a\\nb')",
        "SELECT pfsup.begin_work(%s, NULL, 'w1')",
        "SELECT pfsup.begin_work(%s, 'paint', 'w1', NULL, '{\"sources\": 1}')",
        "SELECT pfsup.begin_work(%s, 'paint', 'w1', NULL, '[]')",
    ],
)
def test_bad_argument_is_refused_with_the_rule(owner: Owner, worker: Worker, call: str) -> None:
    number = owner.sent()
    with pytest.raises(psycopg.Error) as refused:
        worker.rows(call, number)
    assert refused.value.sqlstate == "PF400"
    assert str(refused.value).startswith("cannot begin")
    assert owner.status(number) == "sent"


def test_handover_row_is_refused_because_its_consumer_never_begins(owner: Owner, worker: Worker) -> None:
    owner.policy("paint", completion="handover")
    number = owner.stage()
    owner.claim(number)
    with pytest.raises(psycopg.Error) as refused:
        worker.begin(number)
    assert refused.value.sqlstate == "PF410"


def test_beginning_run_fulfils_the_wishes_it_sees_with_the_newest_payload(owner: Owner, worker: Worker) -> None:
    number = owner.sent(key="k", payload=1)
    owner.stage(key="k", payload=2)
    owner.stage(key="k", payload=3)
    assert worker.begin(number).payload == 3
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


def test_wish_in_an_open_transaction_while_the_run_begins_is_kept(
    database: Database, owner: Owner, worker: Worker
) -> None:
    number = owner.sent(key="k", payload=1)
    with owner_of(database) as producer, producer.conn.transaction():
        producer.stage(key="k", payload=2)
        run = worker.begun(number)
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 1
    worker.settle(run, "consumed")
    assert [r.payload for r in owner.rows("SELECT payload FROM pfsup.async_dispatches WHERE status = 'pending'")] == [2]


def test_run_that_will_skip_its_done_effect_fulfils_no_wish(owner: Owner, worker: Worker) -> None:
    number = owner.sent(key="k", payload=1)
    run = worker.begun(number)
    worker.effect(run, "begun")
    worker.effect(run, "done", ref="r7")
    worker.settle(run, "retry", retry_in=0)
    owner.stage(key="k", payload=2)
    owner.mark(number)
    answer = worker.begin(number)
    assert (answer.effect, answer.effect_ref, answer.payload, answer.attempt) == ("done", "r7", 1, 2)
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 1


@pytest.mark.parametrize(
    "wish",
    [
        "'paint', '7', NULL, clock_timestamp() + interval '1 h', 'k'",
        "'paint', '8', NULL, NULL, 'k'",
        "'print', '7', NULL, NULL, 'k'",
    ],
    ids=["later", "another row", "another actor"],
)
def test_run_leaves_wishes_that_it_cannot_stand_for(owner: Owner, worker: Worker, wish: str) -> None:
    number = owner.sent(key="k")
    owner.rows(f"SELECT pfsup.stage({wish})")
    worker.begun(number)
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 1


def test_wish_older_than_the_envelope_does_not_bring_its_older_payload(
    database: Database, owner: Owner, worker: Worker
) -> None:
    run = worker.begun(owner.sent(key="k", payload=1))
    with owner_of(database) as slow, slow.conn.transaction():
        slow.stage(key="k", payload=2)
        worker.settle(run, "consumed")
        newer = owner.stage(key="k", payload=3)
    owner.mark(newer)
    assert worker.begin(newer).payload == 3
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


def test_wish_older_than_the_one_that_became_the_envelope_does_not_bring_its_older_payload(
    database: Database, owner: Owner, worker: Worker
) -> None:
    run = worker.begun(owner.sent(key="k", payload=1))
    with owner_of(database) as slow, slow.conn.transaction():
        slow.stage(key="k", payload=2)
        owner.stage(key="k", payload=3)
        worker.settle(run, "consumed")
    number = owner.value("SELECT max(id) FROM pfsup.async_dispatches")
    owner.mark(number)
    assert worker.begin(number).payload == 3


def test_wish_newer_than_the_one_that_became_the_envelope_brings_its_payload(
    database: Database, owner: Owner, worker: Worker
) -> None:
    run = worker.begun(owner.sent(key="k", payload=1))
    owner.stage(key="k", payload=2)
    with owner_of(database) as slow, slow.conn.transaction():
        slow.stage(key="k", payload=3)
        worker.settle(run, "consumed")
    number = owner.value("SELECT max(id) FROM pfsup.async_dispatches")
    owner.mark(number)
    assert worker.begin(number).payload == 3


def test_wish_older_than_one_that_a_snoozed_run_took_does_not_bring_its_older_payload(
    database: Database, owner: Owner, worker: Worker
) -> None:
    number = owner.sent(key="k", payload=1)
    with owner_of(database) as slow, slow.conn.transaction():
        slow.stage(key="k", payload=2)
        owner.stage(key="k", payload=3)
        worker.settle(worker.begun(number), "snooze", retry_in=0)
    owner.mark(number)
    assert worker.begin(number).payload == 3
