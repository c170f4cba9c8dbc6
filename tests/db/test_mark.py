"""mark_sent, release_claims, fail_send, take_back: compare-and-set with a live claim, and nobody waits."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.database import Database
from support.outbox import Claimer, column, leased, stage, statuses


def expire(database: Database) -> None:
    with database.superuser() as conn:
        conn.execute("UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 ms'")


def test_mark_writes_where_the_entry_stands_and_ends_the_claim(database: Database):
    with Claimer(database) as claimer:
        stage(database)
        (one,) = claimer.claim()
        assert claimer.mark([one]) == {}
    assert column(database, "(status, sink_ref, deliveries, lease_token IS NULL, claimed_by)::text") == [
        f'(sent,"s {one}-1",1,t,)'
    ]
    assert column(database, "check_at - sent_at = interval '60 s'") == [True]


def test_mark_of_ninety_nine_rows_does_not_wait_for_the_hundredth(database: Database):
    stage(database, count=100)
    with database.superuser() as conn, Claimer(database) as claimer:
        ids = claimer.claim(100)
        with conn.transaction():
            conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids[40:41])
            assert claimer.mark(ids) == {ids[40]: "skipped"}
            assert statuses(database) == {"sent": 99, "pending": 1}
        assert claimer.mark(ids[40:41]) == {}


def test_mark_by_a_dispatcher_that_was_frozen_longer_than_its_lease_changes_nothing(database: Database):
    stage(database)
    with Claimer(database) as frozen, Claimer(database) as other:
        ids = frozen.claim()
        expire(database)
        assert frozen.mark(ids) == {ids[0]: "lost"}
        assert other.claim() == ids
        assert frozen.mark(ids) == {ids[0]: "lost"}
        assert other.mark(ids) == {}


def test_mark_cannot_turn_back_a_row_that_a_worker_has_finished(database: Database):
    stage(database)
    with Claimer(database) as claimer, psycopg.connect(database.worker_url, autocommit=True) as worker:
        ids = claimer.claim()
        row = worker.execute("SELECT token FROM pfsup.begin_work(%s, 'mail', 'w')", ids).fetchone()
        assert row is not None
        assert claimer.mark(ids) == {ids[0]: "lost"}
        worker.execute("SELECT pfsup.settle(%s, %s, 'consumed')", (ids[0], row[0]))
        assert claimer.mark(ids) == {ids[0]: "lost"}
    assert (statuses(database), column(database, "deliveries")) == ({"consumed": 1}, [1])


def test_mark_takes_rows_of_several_claims_in_one_statement(database: Database):
    stage(database, count=4)
    with Claimer(database) as claimer:
        first, token = claimer.claim(2), claimer.token
        second = claimer.claim(2)
        tokens = [token, token, claimer.token, claimer.token]
        query = "SELECT id, outcome FROM pfsup.mark_sent(%s, %s, %s)"
        assert claimer.conn.execute(query, (tokens, first + second, ["s 1-1"] * 4)).fetchall() == []
    assert statuses(database) == {"sent": 4}


def test_mark_is_the_end_of_a_row_whose_actor_hands_over(database: Database):
    with Claimer(database) as claimer:
        policy = '{"mail": {"completion": "handover", "max_attempts": 3, "retry_base": 2, "retry_cap": 60, "lease": 60,'
        claimer.one("sync_actors(%s)", policy + ' "max_run": 3600, "on_lost": "unknown", "queue": ""}}')
        stage(database)
        claimer.mark(claimer.claim())
    assert column(database, "(status, finished_at = sent_at, check_at)::text") == ["(consumed,t,)"]


def test_mark_of_a_handed_over_row_stages_the_wish_that_came_meanwhile(database: Database):
    with Claimer(database) as claimer, psycopg.connect(database.app_url, autocommit=True) as app:
        policy = '{"mail": {"completion": "handover", "max_attempts": 3, "retry_base": 2, "retry_cap": 60, "lease": 60,'
        claimer.one("sync_actors(%s)", policy + ' "max_run": 3600, "on_lost": "unknown"}}')
        app.execute("SELECT pfsup.stage('mail', '1', delivery_key => 'k')")
        ids = claimer.claim()
        app.execute("SELECT pfsup.stage('mail', '1', delivery_key => 'k')")
        claimer.mark(ids)
        assert len(claimer.claim()) == 1


def test_release_gives_claims_back_uncharged_and_due_as_before(database: Database):
    ids = stage(database, count=3)
    before = column(database, "to_jsonb(async_dispatches)")
    with Claimer(database) as claimer:
        claimer.claim()
        assert claimer.one("release_claims(%s, %s)", claimer.token, ids[:2]) == 2
        assert claimer.one("release_claims(%s, NULL)", claimer.token) == 1
        assert claimer.one("release_claims(%s, %s)", uuid4(), ids) == 0
    assert column(database, "to_jsonb(async_dispatches)") == before


def test_release_does_not_touch_the_claim_of_another(database: Database):
    stage(database)
    with Claimer(database) as old, Claimer(database) as new:
        ids = old.claim()
        expire(database)
        assert new.claim() == ids
        assert old.one("release_claims(%s, %s)", old.token, ids) == 0
    assert leased(database) == 1


def fail(claimer: Claimer, ids: list[int], *, most: int = 10, error: str = "refused") -> dict[int, str]:
    query = "SELECT id, status FROM pfsup.fail_send(%s, %s, %s, %s)"
    return dict(claimer.conn.execute(query, (claimer.token, ids, [error] * len(ids), most)).fetchall())


def test_fail_charges_the_row_and_moves_its_due_time(database: Database):
    stage(database)
    with Claimer(database) as claimer:
        ids = claimer.claim()
        assert fail(claimer, ids, error="bad \x1b[31m text") == {ids[0]: "pending"}
        assert claimer.claim() == []
    assert column(database, "(send_attempts, attempts, last_error)::text") == ['(1,0,"bad  [31m text")']
    assert column(database, "available_at - clock_timestamp() BETWEEN '0.3 s' AND '1.2 s'") == [True]


def test_fail_backs_off_exponentially_with_jitter_up_to_the_cap(database: Database):
    stage(database, count=50)
    with database.superuser() as conn, Claimer(database) as claimer:
        conn.execute("UPDATE pfsup.async_dispatches SET send_attempts = 5")
        fail(claimer, claimer.claim())
        waits = column(database, "extract(epoch FROM available_at - clock_timestamp())::float")
    assert 20 < min(waits) < max(waits) < 40
    assert len({round(wait, 1) for wait in waits}) > 5


def test_fail_ends_a_row_at_the_limit_visibly(database: Database):
    stage(database)
    with Claimer(database) as claimer:
        ids = claimer.claim()
        assert fail(claimer, ids, most=1) == {ids[0]: "dead"}
    with database.superuser() as conn:
        audit = conn.execute("SELECT kind, action, after, reason FROM pfsup.audit_log WHERE dispatch_id = %s", ids)
        assert audit.fetchall() == [("system", "send failed", "dead", "refused")]


def test_fail_does_nothing_without_the_claim(database: Database):
    ids = stage(database)
    with Claimer(database) as claimer:
        claimer.token = uuid4()
        assert fail(claimer, ids) == {}


def register(claimer: Claimer, boot_id: UUID, *, name: str = "pfsup", host: str = "here") -> None:
    claimer.one("register_instance(%s, %s, %s, 1, '0')", boot_id, name, host)


@pytest.mark.parametrize(
    ("holder", "taken"),
    [
        ("{mine}/1", 1),  # an earlier generation of this boot
        ("{mine}/3", 0),  # a later one: it lives
        ("{before}/9", 1),  # an earlier boot of this instance, whose lock is ours now
        ("{elsewhere}/1", 0),  # the same name on another host
        ("{other}/1", 0),  # another instance on this host
        ("a stranger", 0),
    ],
)
def test_take_back_takes_only_the_claims_of_the_provably_dead(database: Database, holder: str, taken: int):
    names: dict[str, Any] = {name: uuid4() for name in ("mine", "before", "elsewhere", "other")}
    stage(database)
    with Claimer(database, claimed_by=holder.format(**names)) as claimer:
        register(claimer, names["before"])
        register(claimer, names["elsewhere"], host="there")
        register(claimer, names["other"], name="second")
        register(claimer, names["mine"])
        claimer.claim()
        assert claimer.one("take_back(%s, 2)", names["mine"]) == taken
    assert leased(database) == 1 - taken


def test_sync_actors_writes_only_what_differs(database: Database):
    policy = (
        '{"mail": {"queue": "slow", "completion": "worker", "max_attempts": 3, "retry_base": 0.5, "retry_cap": 60,'
        ' "lease": 60, "max_run": 3600, "on_lost": "redispatch"}}'
    )
    with Claimer(database) as claimer:
        assert [claimer.one("sync_actors(%s)", policy) for _ in range(2)] == [1, 0]
        assert claimer.one("sync_actors(%s)", policy.replace('"max_attempts": 3', '"max_attempts": 4')) == 1
        stage(database)
        claimer.claim()
        assert claimer.queues == {"slow": 1}


def test_requeue_takes_sent_rows_of_one_queue_that_no_worker_began_uncharged(database: Database):
    stage(database, "mail", 5)
    stage(database, "other", 2)
    with Claimer(database) as claimer, psycopg.connect(database.worker_url, autocommit=True) as worker:
        ids = claimer.claim()
        claimer.mark(ids)
        worker.execute("SELECT pfsup.begin_work(%s, 'mail', 'w')", ids[:1])
        calls = [claimer.one("requeue_lost('mail', clock_timestamp(), batch => 3)") for _ in range(3)]
        assert calls == [3, 1, 0]
    assert statuses(database) == {"pending": 4, "running": 1, "sent": 2}
    assert column(database, "send_attempts + attempts + recoveries") == [0] * 7


def test_requeue_leaves_rows_whose_entries_are_still_there(database: Database):
    stage(database, count=4)
    with Claimer(database) as claimer:
        ids = claimer.claim()
        query = "SELECT * FROM pfsup.mark_sent(%s, %s, %s)"
        claimer.conn.execute(query, ([claimer.token] * 4, ids, ["s 9-0", "s 10-0", "s 10-5", "s 100-0"]))
        assert claimer.one("requeue_lost('mail', clock_timestamp(), '10-0', '99-9')") == 2
    assert column(database, "id", "status = 'pending'") == [ids[0], ids[3]]


def test_stage_restaged_gives_each_left_over_wish_an_envelope(database: Database):
    with database.superuser() as conn, Claimer(database) as claimer:
        for key in ("a", "b", "c"):
            conn.execute(
                "INSERT INTO pfsup.restaged (delivery_key, actor, aggregate_id) VALUES (%s, 'mail', '1')", (key,)
            )
        conn.execute("SELECT pfsup.stage('mail', '1', delivery_key => 'b')")
        row = claimer.conn.execute("SELECT * FROM pfsup.stage_restaged(batch => 2)").fetchone()
        assert row == (1, "b")
        row = claimer.conn.execute("SELECT * FROM pfsup.stage_restaged('b')").fetchone()
        assert row == (1, None)
    assert column(database, "delivery_key") == ["b", "a", "c"]
