"""pfsup.work: one message on the caller's own connection, settled in the caller's own transaction."""

# ruff: noqa: PT012 - what stands under `with pfsup.work(...)` is what is tested

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pfsup
import psycopg
import pytest
from support.database import Database
from support.messages import Stream, stream_of
from support.runs import Owner, owner_of
from support.waiting import until


@pytest.fixture
def owner(database: Database) -> Generator[Owner]:
    with owner_of(database) as session:
        session.rows("CREATE TABLE public.results (dispatch_id bigint)")
        session.rows("GRANT ALL ON public.results TO t_worker")
        yield session


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        yield found


@pytest.fixture
def conn(database: Database, owner: Owner) -> Generator[psycopg.Connection[Any]]:
    del owner  # its table comes first
    with psycopg.connect(database.worker_url) as found:
        yield found


def note(conn: psycopg.Connection[Any], task: pfsup.Task) -> None:
    """The business result."""
    conn.execute("INSERT INTO public.results VALUES (%s)", [task.id])


def results(owner: Owner) -> list[int]:
    return [row.dispatch_id for row in owner.rows("SELECT dispatch_id FROM public.results")]


def test_result_and_settlement_are_one_transaction(owner: Owner, stream: Stream, conn: psycopg.Connection[Any]) -> None:
    number = stream.deliver(payload={"size": 3})
    with pfsup.work(conn, stream.message(), worker="w") as task:
        assert task is not None
        assert (task.id, task.payload, owner.status(number)) == (number, {"size": 3}, "running")
        note(conn, task)
        assert results(owner) == []
    assert (owner.status(number), owner.row(number).worker, results(owner)) == ("consumed", "w", [number])


@pytest.mark.parametrize("state", ["running", "ended", "paused", "foreign"])
def test_message_that_is_not_to_be_run_gives_no_task(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any], state: str
) -> None:
    number = stream.deliver()
    message = stream.message()
    if state == "paused":
        owner.rows("INSERT INTO pfsup.controls (kind, name, who, why) VALUES ('actor', 'paint', 'me', 'test')")
    elif state == "foreign":
        message["source"] = "other/1"
    else:
        begun = owner.one("SELECT * FROM pfsup.begin_work(%s, 'paint', 'other')", number)
        if state == "ended":
            owner.rows("SELECT pfsup.settle(%s, %s, 'consumed')", number, begun.token)
    before = owner.row(number)
    with pfsup.work(conn, message) as task:
        assert task is None
    assert owner.status(number) == ("pending" if state == "paused" else before.status)


@pytest.mark.parametrize(
    ("raised", "end"),
    [
        (pfsup.Retry(3600, "again"), ("pending", 1, "again")),
        (pfsup.Snooze(3600), ("pending", 0, None)),
        (pfsup.Reject("no"), ("rejected", 0, "no")),
        (pfsup.Unknown("who knows"), ("unknown", 0, "who knows")),
    ],
    ids=["retry", "snooze", "reject", "unknown"],
)
def test_what_the_block_raises_ends_the_run_and_its_result_is_rolled_back(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any], raised: Exception, end: tuple[str, int, str | None]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        raise raised
    row = owner.row(number)
    assert ((row.status, row.attempts, row.last_error), results(owner)) == (end, [])


def test_other_exception_is_a_retry_and_is_raised_again(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(ZeroDivisionError), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        _ = 1 // 0
    row = owner.row(number)
    assert (row.status, row.attempts, results(owner)) == ("pending", 1, [])
    assert row.last_error.startswith("ZeroDivisionError: ")


def test_late_result_is_lost_with_its_transaction_and_told(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(pfsup.Late), pfsup.work(conn, stream.message(), worker="slow") as task:
        assert task is not None
        note(conn, task)
        owner.take_away(number)
    assert (owner.status(number), results(owner)) == ("pending", [])
    late = owner.one("SELECT reason FROM pfsup.audit_log WHERE action = 'late'")
    assert late.reason.startswith("worker slow reported consumed at ")


def test_failure_that_comes_late_is_not_raised_over_the_block_s_own(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        owner.take_away(number)
        raise pfsup.Reject("no")
    assert owner.status(number) == "pending"
    assert owner.one("SELECT action FROM pfsup.audit_log WHERE action = 'late'")


def test_effect_is_stored_before_the_call_and_skipped_once_it_is_done(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with task.effect("main") as call:
            assert (call.done, owner.row(number).effect) == (False, "begun")
            call.ref = "provider-7"
        raise pfsup.Snooze(0)
    assert owner.row(number).effect == "done"
    stream.deliver_again(number)
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        assert (task.effect, task.effect_ref) == ("done", "provider-7")
        with task.effect("main") as call:
            assert (call.done, call.ref) == (True, "provider-7")
    assert owner.status(number) == "consumed"


def test_effect_that_fails_unproved_ends_unknown_and_a_void_one_may_be_made_again(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    first = stream.deliver()
    with pytest.raises(TimeoutError), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with task.effect():
            raise TimeoutError
    second = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with task.effect() as call:
            call.void()
        raise pfsup.Retry(0)
    assert (owner.status(first), owner.status(second), owner.row(second).effect) == ("unknown", "pending", "none")


def test_effect_cannot_begin_inside_an_open_transaction(stream: Stream, conn: psycopg.Connection[Any]) -> None:
    stream.deliver()
    with (
        pytest.raises(pfsup.PfsupError, match="it would not be stored before the call; commit first"),
        pfsup.work(conn, stream.message()) as task,
    ):
        assert task is not None
        note(conn, task)
        with task.effect():
            raise AssertionError("the call must not be made")


def test_autocommit_connection_settles_in_the_task_s_transaction(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver()
    with (
        psycopg.connect(database.worker_url, autocommit=True) as conn,
        pfsup.work(conn, stream.message()) as task,
    ):
        assert task is not None
        with pytest.raises(ZeroDivisionError), task.transaction() as inside:
            note(inside, task)
            _ = 1 // 0
        assert (owner.status(number), results(owner)) == ("running", [])
        with task.transaction() as inside:
            note(inside, task)
    assert (owner.status(number), results(owner)) == ("consumed", [number])


def test_lease_is_prolonged_while_the_block_runs(owner: Owner, stream: Stream, conn: psycopg.Connection[Any]) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message(), lease_s=1.0) as task:
        assert task is not None
        first = owner.row(number).lease_expires_at
        until(lambda: (owner.row(number).lease_expires_at - first).total_seconds() > 1.5)
    assert owner.status(number) == "consumed"


def test_row_that_stays_locked_is_told_as_busy_and_nothing_changes(
    database: Database, owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with owner_of(database) as locker:
        locker.rows("BEGIN")
        locker.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", number)
        with pytest.raises(pfsup.Busy, match="deliver the message again"), pfsup.work(conn, stream.message()):
            raise AssertionError("it must not begin")
        locker.rows("ROLLBACK")
    assert owner.status(number) == "sent"


def test_connection_inside_a_transaction_is_refused(stream: Stream, conn: psycopg.Connection[Any]) -> None:
    stream.deliver()
    conn.execute("SELECT 1")
    with (
        pytest.raises(pfsup.PfsupError, match="commit or roll back first"),
        pfsup.work(conn, stream.message()),
    ):
        raise AssertionError("it must not begin")


@pytest.mark.parametrize("message", [{}, {"v": "1"}, {"v": "1", "dispatch_id": "x", "actor": "paint", "source": "s/1"}])
def test_message_that_is_no_message_is_a_clear_error(conn: psycopg.Connection[Any], message: dict[str, str]) -> None:
    with pytest.raises(pfsup.PfsupError, match="cannot"), pfsup.work(conn, message):
        raise AssertionError("it must not begin")
