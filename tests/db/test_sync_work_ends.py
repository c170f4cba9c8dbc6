"""pfsup.work when something goes wrong: whatever ends the block also ends its run, and nothing stays open."""

# ruff: noqa: PT012 - what stands under `with pfsup.work(...)` is what is tested

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pfsup
import psycopg
import pytest
from psycopg.pq import TransactionStatus
from support.database import Database
from support.messages import Stream, stream_of
from support.runs import Owner, owner_of


class TimeLimit(BaseException):
    """What some frameworks raise into a running task: no Exception, so that no task swallows it."""


@pytest.fixture
def owner(database: Database) -> Generator[Owner]:
    with owner_of(database) as session:
        session.rows("CREATE TABLE public.results (dispatch_id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
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


@pytest.fixture
def auto(database: Database) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(database.worker_url, autocommit=True) as found:
        yield found


def note(conn: psycopg.Connection[Any], task: pfsup.Task) -> None:
    """The business result."""
    conn.execute("INSERT INTO public.results VALUES (%s)", [task.id])


def results(owner: Owner) -> list[int]:
    return [row.dispatch_id for row in owner.rows("SELECT dispatch_id FROM public.results")]


def is_idle(conn: psycopg.Connection[Any]) -> bool:
    return conn.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.parametrize("raised", [TimeLimit, KeyboardInterrupt, SystemExit])
def test_block_that_is_broken_off_is_rolled_back_and_is_a_retry(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any], raised: type[BaseException]
) -> None:
    number = stream.deliver()
    with pytest.raises(raised), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        raise raised
    assert is_idle(conn)
    conn.commit()  # the framework's own, later
    assert (owner.status(number), owner.row(number).attempts, results(owner)) == ("pending", 1, [])


def test_commit_that_fails_is_a_retry_and_is_raised(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(psycopg.errors.UniqueViolation), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        note(conn, task)
    row = owner.row(number)
    assert (row.status, row.attempts, results(owner), is_idle(conn)) == ("pending", 1, [], True)
    assert row.last_error.startswith("UniqueViolation: ")


def test_error_of_a_statement_that_the_block_swallowed_is_a_retry(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        with pytest.raises(psycopg.errors.UndefinedTable):
            conn.execute("SELECT FROM public.nowhere")
    assert (owner.status(number), owner.row(number).attempts, results(owner)) == ("pending", 1, [])


def test_run_that_its_own_sql_settled_is_settled_once(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        conn.execute("SELECT pfsup.settle(%s, %s, 'consumed')", [task.id, task.token])
    assert (owner.status(number), results(owner)) == ("consumed", [number])


def test_failure_after_the_task_s_transaction_changes_nothing_about_its_end(
    owner: Owner, stream: Stream, auto: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(ZeroDivisionError), pfsup.work(auto, stream.message()) as task:
        assert task is not None
        with task.transaction() as inside:
            note(inside, task)
        _ = 1 // 0
    assert (owner.status(number), owner.row(number).attempts, results(owner)) == ("consumed", 0, [number])


def test_late_result_of_a_task_s_transaction_is_lost_and_told_once(
    owner: Owner, stream: Stream, auto: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with (
        pytest.raises(pfsup.Late),
        pfsup.work(auto, stream.message(), worker="slow") as task,
    ):
        assert task is not None
        with task.transaction() as inside:
            note(inside, task)
            owner.take_away(number)
    assert (owner.status(number), results(owner)) == ("pending", [])
    assert owner.one("SELECT who FROM pfsup.audit_log WHERE action = 'late'").who == "slow"


def test_call_that_was_made_by_a_run_taken_for_lost_stays_unknown_and_is_told(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with (
        pytest.raises(pfsup.Late),
        pfsup.work(conn, stream.message(), worker="slow") as task,
    ):
        assert task is not None
        with task.effect():
            owner.lose(number)
    assert owner.status(number) == "unknown"
    assert owner.one("SELECT who FROM pfsup.audit_log WHERE action = 'late'").who == "slow"


def test_task_s_transaction_is_refused_inside_one_that_is_open(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        with pytest.raises(pfsup.PfsupError, match="one is open on the connection"), task.transaction():
            raise AssertionError("it must not begin")
    assert owner.status(number) == "consumed"


def test_effect_of_a_run_that_lost_its_row_does_not_begin(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(pfsup.Late), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        owner.take_away(number)
        with task.effect():
            raise AssertionError("the call must not be made")
    row = owner.row(number)
    assert (row.status, row.attempts, row.effect, is_idle(conn)) == ("pending", 0, "none", True)


def test_refused_effect_leaves_the_connection_ready_for_more(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with pytest.raises(psycopg.Error, match="bad name or ref"), task.effect("x" * 101):
            raise AssertionError("the call must not be made")
        note(conn, task)
    assert (owner.status(number), results(owner)) == ("consumed", [number])


def test_effect_begins_after_a_lease_that_ended_while_nobody_took_the_row(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        owner.expire(number)
        with task.effect() as call:
            assert (call.done, owner.row(number).effect) == (False, "begun")
    assert (owner.status(number), owner.row(number).effect) == ("consumed", "done")


def test_effect_that_is_done_is_stored_with_the_result(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(ZeroDivisionError), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with task.effect():
            note(conn, task)
            assert owner.row(number).effect == "begun"
        assert owner.row(number).effect == "begun"  # done joins the result's transaction, which is rolled back
        _ = 1 // 0
    assert (owner.status(number), results(owner)) == ("unknown", [])


async def test_async_forms_are_refused_with_what_to_write_instead(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pfsup.work(conn, stream.message()) as task:
        assert task is not None
        with pytest.raises(pfsup.PfsupError, match="write 'with'"):
            async with task.effect():
                raise AssertionError("it must not begin")
        with pytest.raises(pfsup.PfsupError, match="write 'with'"):
            async with task.transaction():
                raise AssertionError("it must not begin")
    assert owner.status(number) == "consumed"


def test_connection_that_breaks_leaves_the_run_to_its_lease(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(psycopg.OperationalError), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        note(conn, task)
        conn.close()
    assert (owner.status(number), results(owner)) == ("running", [])


def test_own_error_is_the_one_that_is_raised_when_the_connection_broke_too(
    owner: Owner, stream: Stream, conn: psycopg.Connection[Any]
) -> None:
    number = stream.deliver()
    with pytest.raises(ZeroDivisionError), pfsup.work(conn, stream.message()) as task:
        assert task is not None
        conn.close()
        _ = 1 // 0
    assert owner.status(number) == "running"
