"""redispatch: what recovery is answered for each state of a row, and what it changes."""

from __future__ import annotations

from collections.abc import Generator

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb
from support.database import Database
from support.runs import Owner, Row, Session, Worker


class Recovery(Session):
    def redispatch(self, number: int, **options: object) -> Row:
        return self.one("SELECT * FROM pfsup.redispatch(%s, %s)", number, Jsonb(options))


@pytest.fixture
def recovery(database: Database) -> Generator[Recovery]:
    with psycopg.connect(database.run_url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield Recovery(conn)


def lost_run(owner: Owner, worker: Worker, **staged: object) -> int:
    number = owner.sent(**staged)
    worker.begun(number)
    owner.expire(number)
    return number


def test_pending_row_is_queued_already_and_dispatch_is_woken(
    database: Database, owner: Owner, recovery: Recovery
) -> None:
    number = owner.stage()
    before = owner.row(number)
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        assert recovery.redispatch(number)[:] == (number, "queued")
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1
    assert owner.row(number) == before


def test_sent_row_waits_in_its_stream_and_is_left_there(owner: Owner, recovery: Recovery) -> None:
    number = owner.sent()
    before = owner.row(number)
    assert recovery.redispatch(number).outcome == "queued"
    assert recovery.redispatch(number, lost_ref="another 1-1").outcome == "queued"
    assert owner.row(number) == before


def test_sent_row_whose_entry_is_gone_goes_out_again_uncharged(owner: Owner, recovery: Recovery) -> None:
    number = owner.sent()
    assert recovery.redispatch(number, lost_ref="pfsup:pfsup:paint 1-1").outcome == "staged"
    row = owner.row(number)
    assert (row.status, row.recoveries, row.attempts, row.deliveries) == ("pending", 0, 0, 1)


def test_live_run_is_alive(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = owner.sent()
    worker.begun(number)
    before = owner.row(number)
    assert recovery.redispatch(number).outcome == "alive"
    assert owner.row(number) == before


@pytest.mark.parametrize("column", ["lease_expires_at", "deadline_at"])
def test_lost_run_goes_back_in_line_and_counts(owner: Owner, worker: Worker, recovery: Recovery, column: str) -> None:
    number = owner.sent()
    worker.begun(number)
    owner.rows(f"UPDATE pfsup.async_dispatches SET {column} = clock_timestamp()")
    assert recovery.redispatch(number)[:] == (number, "staged")
    row = owner.row(number)
    assert (row.status, row.recoveries, row.attempts, row.worker) == ("pending", 1, 0, None)


def test_recovery_that_counts_elsewhere_leaves_the_rows_count(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = lost_run(owner, worker)
    assert recovery.redispatch(number, charge="none").outcome == "staged"
    assert owner.row(number).recoveries == 0


def test_lost_run_with_an_unproved_effect_is_uncertain_and_untouched(
    owner: Owner, worker: Worker, recovery: Recovery
) -> None:
    number = owner.sent()
    worker.effect(worker.begun(number), "begun")
    owner.expire(number)
    before = owner.row(number)
    assert recovery.redispatch(number).outcome == "uncertain"
    assert owner.row(number) == before


def test_actor_that_may_repeat_effects_is_redispatched(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    owner.policy("paint", on_lost="redispatch")
    number = owner.sent()
    worker.effect(worker.begun(number), "begun")
    owner.expire(number)
    assert recovery.redispatch(number).outcome == "staged"
    assert owner.row(number).effect == "none"
    assert owner.value("SELECT state FROM pfsup.dispatch_effects") == "unknown"
    owner.mark(number)
    assert worker.effect(worker.begun(number), "begun").verdict == "ok"


def test_done_effect_is_handed_to_the_next_run(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = owner.sent()
    run = worker.begun(number)
    worker.effect(run, "begun")
    worker.effect(run, "done", ref="img-9")
    owner.expire(number)
    assert recovery.redispatch(number).outcome == "staged"
    owner.mark(number)
    answer = worker.begin(number)
    assert (answer.effect, answer.effect_ref, answer.recoveries) == ("done", "img-9", 1)


@pytest.mark.parametrize("status", ["dead", "unknown"])
def test_row_that_waits_for_a_person_is_blocked(owner: Owner, worker: Worker, recovery: Recovery, status: str) -> None:
    number = owner.sent()
    worker.settle(worker.begun(number), status)
    assert recovery.redispatch(number).outcome == "blocked"
    assert owner.status(number) == status


def test_held_row_is_blocked(owner: Owner, recovery: Recovery) -> None:
    number = owner.stage()
    owner.rows("UPDATE pfsup.async_dispatches SET status = 'held'")
    assert recovery.redispatch(number).outcome == "blocked"


def test_ended_row_gets_a_new_envelope_like_it(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = owner.sent(key="k", payload={"a": 1}, tenant="t", headers={"h": 1}, queue="slow", max_attempts=3)
    worker.settle(worker.begun(number), "consumed")
    answer = recovery.redispatch(number)
    assert (answer.outcome, answer.id) == ("staged", number + 1)
    old, new = owner.row(number), owner.row(answer.id)
    same = ("actor", "queue", "aggregate_id", "delivery_key", "tenant", "payload", "headers", "max_attempts")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
    assert (new.status, new.attempts, new.recoveries, new.effect) == ("pending", 0, 1, "none")


def test_ended_row_whose_key_lives_again_gets_no_second_envelope(
    owner: Owner, worker: Worker, recovery: Recovery
) -> None:
    number = owner.sent(key="k")
    worker.settle(worker.begun(number), "consumed")
    living = owner.stage(key="k")
    assert recovery.redispatch(number)[:] == (living, "queued")
    owner.mark(living)
    run = worker.begun(living)
    assert recovery.redispatch(number)[:] == (living, "alive")
    worker.settle(run, "dead")
    assert recovery.redispatch(number)[:] == (living, "blocked")


def test_locked_row_is_taken_and_nobody_waits(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = lost_run(owner, worker)
    recovery.rows("SET lock_timeout = '1ms'")
    with owner.conn.transaction():
        owner.rows("SELECT FROM pfsup.async_dispatches FOR UPDATE")
        assert recovery.redispatch(number).outcome == "taken"
    with recovery.conn.transaction():
        assert recovery.redispatch(number).outcome == "staged"


def test_lost_worker_that_comes_back_changes_nothing(owner: Owner, worker: Worker, recovery: Recovery) -> None:
    number = owner.sent()
    run = worker.begun(number)
    owner.expire(number)
    recovery.redispatch(number)
    assert worker.beat(run).verdict == "late"
    with pytest.raises(psycopg.Error) as late:
        worker.settle(run, "consumed")
    assert late.value.sqlstate == "PF412"
    assert owner.status(number) == "pending"


@pytest.mark.parametrize(("number", "options", "code"), [(4711, "{}", "PF404"), (1, '{"charge": "me"}', "PF400")])
def test_bad_argument_is_refused(owner: Owner, recovery: Recovery, number: int, options: str, code: str) -> None:
    owner.stage()
    with pytest.raises(psycopg.Error) as refused:
        recovery.rows("SELECT pfsup.redispatch(%s, %s)", number, options)
    assert refused.value.sqlstate == code


def test_worker_role_cannot_redispatch(worker: Worker) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        worker.rows("SELECT pfsup.redispatch(1)")
