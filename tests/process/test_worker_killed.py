"""A worker process ended at each boundary of a run: nothing is lost, nothing is done twice, nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support import worker_program
from support.database import Database
from support.messages import Stream, stream_of
from support.runs import Owner, owner_of
from support.servers import RedisServer
from support.waiting import HANG_S, until


@pytest.fixture
def owner(database: Database) -> Generator[Owner]:
    with owner_of(database) as session:
        session.rows("CREATE TABLE public.runs (dispatch_id bigint)")
        session.rows("CREATE TABLE public.calls (dispatch_id bigint)")  # what a provider saw
        session.rows("GRANT ALL ON public.runs, public.calls TO t_worker")
        yield session


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        yield found


@contextmanager
def working(database: Database, *, lease_s: float = 60) -> Generator[subprocess.Popen[bytes]]:
    """A worker process; killed at the end if it still runs."""
    program = Path(worker_program.__file__)
    arguments = [database.worker_url, database.redis_url, str(lease_s)]
    process = subprocess.Popen([sys.executable, str(program), *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait(HANG_S)


@contextmanager
def held(database: Database) -> Generator[psycopg.Connection]:
    """Runs stop at their point until the block ends, or the connection lets go."""
    with database.superuser() as conn:
        conn.execute("SELECT pg_advisory_lock(7)")
        yield conn


def runs(owner: Owner) -> int:
    return int(owner.value("SELECT count(*) FROM public.runs"))


def test_message_that_was_read_but_not_begun_is_begun_by_the_next(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(payload={"at": ""})
    with owner_of(database) as locker:
        locker.rows("BEGIN")
        locker.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", number)
        with working(database) as worker:
            until(stream.pending)
            worker.kill()
            worker.wait(HANG_S)
        assert (owner.status(number), runs(owner)) == ("sent", 0)
        locker.rows("COMMIT")
    with working(database):
        until(lambda: owner.status(number) == "consumed" and stream.is_empty())
    assert runs(owner) == 1


def test_run_whose_worker_was_killed_goes_to_the_next_once_recovery_has_judged_it(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(payload={"at": "begun"})
    with held(database) as gate:
        with working(database) as worker:
            until(lambda: runs(owner) == 1)
            worker.kill()
            worker.wait(HANG_S)
        assert owner.status(number) == "running"
        assert owner.value("SELECT outcome FROM pfsup.redispatch(%s)", number) == "alive"
        with working(database):
            until(stream.is_empty)  # the old message gets no second run
            assert (owner.status(number), runs(owner)) == ("running", 1)
            owner.take_away(number)
            owner.mark(number)  # before its message: a worker that is faster than the mark needs a claim to see
            stream.write(number)
            until(lambda: runs(owner) == 2)
            gate.execute("SELECT pg_advisory_unlock(7)")
            until(lambda: owner.status(number) == "consumed" and stream.is_empty())
    assert owner.row(number).recoveries == 1


def test_effect_that_was_begun_by_a_killed_worker_is_never_begun_again(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(payload={"at": "effect"})
    with held(database):
        with working(database) as worker:
            until(lambda: owner.row(number).effect == "begun")
            worker.kill()
            worker.wait(HANG_S)
        owner.expire(number)
        assert owner.value("SELECT outcome FROM pfsup.redispatch(%s)", number) == "uncertain"
        with working(database):
            until(stream.is_empty)
    assert (owner.status(number), runs(owner)) == ("running", 1)


def test_effect_that_was_done_by_a_killed_worker_is_skipped_by_the_run_that_follows(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(payload={"at": "done"})
    with held(database) as gate:
        with working(database) as worker:
            until(lambda: owner.row(number).effect == "done")
            worker.kill()
            worker.wait(HANG_S)
        owner.take_away(number)
        gate.execute("SELECT pg_advisory_unlock(7)")
        stream.deliver_again(number)
        with working(database):
            until(lambda: owner.status(number) == "consumed" and stream.is_empty())
    assert (runs(owner), owner.value("SELECT count(*) FROM public.calls")) == (2, 1)


def test_run_that_was_settled_but_not_acknowledged_is_only_acknowledged_by_the_next(
    database: Database, owner: Owner, stream: Stream, redis_server: RedisServer
) -> None:
    number = stream.deliver(payload={"at": "begun"})
    with held(database) as gate, working(database) as worker:
        until(lambda: runs(owner) == 1)
        redis_server.stop_frozen()
        try:
            gate.execute("SELECT pg_advisory_unlock(7)")
            until(lambda: owner.status(number) == "consumed")
            worker.kill()
            worker.wait(HANG_S)
        finally:
            redis_server.resume()
    with working(database):
        until(stream.is_empty)
    assert (owner.status(number), runs(owner)) == ("consumed", 1)


def test_terminated_worker_finishes_what_it_began_and_leaves_the_rest(
    database: Database, owner: Owner, stream: Stream
) -> None:
    first = stream.deliver(payload={"at": "begun"})
    with held(database) as gate, working(database) as worker:
        until(lambda: runs(owner) == 1)
        worker.terminate()
        gate.execute("SELECT pg_advisory_unlock(7)")
        assert worker.wait(HANG_S) == 0
        second = stream.deliver(payload={"at": ""})
    assert (owner.status(first), owner.status(second), stream.consumers()) == ("consumed", "sent", [])


def test_second_signal_ends_the_wait_for_what_runs(database: Database, owner: Owner, stream: Stream) -> None:
    number = stream.deliver(payload={"at": "begun"})
    with held(database), working(database) as worker:
        until(lambda: runs(owner) == 1)
        worker.terminate()
        until(lambda: stream.client.xinfo_consumers(stream.name, "pfsup")[0]["idle"] > 600)  # it reads no more
        worker.terminate()
        assert worker.wait(HANG_S) == 0
    assert (owner.status(number), owner.row(number).attempts, stream.is_empty()) == ("pending", 0, True)


def test_plain_function_keeps_its_lease_and_is_finished_by_a_drain(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(actor="print")
    with held(database) as gate, working(database, lease_s=1) as worker:
        until(lambda: runs(owner) == 1)
        first = owner.row(number).lease_expires_at
        until(lambda: (owner.row(number).lease_expires_at - first).total_seconds() > 1.2)  # without beats it had ended
        worker.terminate()
        gate.execute("SELECT pg_advisory_unlock(7)")
        assert worker.wait(HANG_S) == 0
    assert (owner.status(number), runs(owner), stream.is_empty()) == ("consumed", 1, True)


def test_thread_that_does_not_end_keeps_no_process_and_leaves_its_run_to_recovery(
    database: Database, owner: Owner, stream: Stream
) -> None:
    number = stream.deliver(actor="print")
    with held(database), working(database) as worker:
        until(lambda: runs(owner) == 1)
        worker.terminate()
        until(lambda: stream.client.xinfo_consumers(stream.name, "pfsup")[0]["idle"] > 600)  # it reads no more
        worker.terminate()
        assert worker.wait(HANG_S) == 0
        assert (owner.status(number), len(stream.pending())) == ("running", 1)
