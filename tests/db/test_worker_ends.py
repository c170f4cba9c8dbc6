"""Worker: effects, the run's own transaction, and the drain, against real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from pfsup.config.errors import PfsupError
from pfsup.shared.worker.outcomes import Late, Retry
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import Stream, serving, stream_of
from support.runs import Owner
from support.waiting import auntil


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    owner.rows("CREATE TABLE public.results (id bigint)")
    owner.rows("GRANT ALL ON public.results TO t_worker")
    with stream_of(database.redis_url, owner) as found:
        yield found


def worker_for(database: Database, **arguments: Any) -> Worker:
    """A worker of queue `paint`."""
    return Worker(database=database.worker_url, redis=database.redis_url, queues=["paint"], **arguments)


def results(owner: Owner) -> list[int]:
    return [row.id for row in owner.rows("SELECT id FROM public.results")]


async def test_effect_is_begun_before_the_call_and_done_after_it(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, states = worker_for(database), list[str]()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        async with task.effect("charge", ref="key-1") as charge:
            states.append(owner.row(task.id).effect)
            charge.ref = "paid-9"
        states.append(owner.row(task.id).effect)

    stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert states == ["begun", "done"]
    assert owner.value("SELECT ref FROM pfsup.dispatch_effects") == "paid-9"


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_effect_that_an_earlier_run_did_is_skipped(
    database: Database, owner: Owner, stream: Stream, plain: bool
) -> None:
    worker, seen = worker_for(database), list[tuple[bool, str | None, str, str | None]]()

    def note(task: Task, done: bool, ref: str | None) -> None:
        seen.append((done, ref, str(task.effect), task.effect_ref))
        if not done:
            raise Retry(0)

    async def paint(task: Task) -> None:
        async with task.effect(ref="r7") as call:
            pass
        note(task, call.done, call.ref)

    def paint_plain(task: Task) -> None:
        with task.effect(ref="r7") as call:
            pass
        note(task, call.done, call.ref)

    worker.actor("paint")(paint_plain if plain else paint)
    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "pending")
        owner.claim(number)
        stream.write(number)
        await auntil(lambda: owner.status(number) == "consumed")
    assert seen == [(False, "r7", "none", None), (True, "r7", "done", "r7")]


async def test_effect_whose_call_failed_unproved_ends_unknown(database: Database, owner: Owner, stream: Stream) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        async with task.effect("charge"):
            raise TimeoutError("no answer")

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.status(number), owner.row(number).last_error) == ("unknown", "TimeoutError: no answer")


async def test_effect_that_is_proved_not_to_have_happened_may_be_made_again(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        async with task.effect("charge") as charge:
            charge.void()
            raise ConnectionRefusedError

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.status(number), owner.row(number).effect) == ("pending", "none")


async def test_effect_of_a_run_that_lost_its_row_does_not_begin(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, called = worker_for(database), False

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        nonlocal called
        owner.take_away(task.id)
        async with task.effect("charge"):
            called = True

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (called, owner.status(number), owner.row(number).attempts) == (False, "pending", 0)


async def test_effect_begins_after_a_lease_that_ended_while_nobody_took_the_row(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        owner.expire(task.id)
        async with task.effect("charge"):
            pass

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")


async def test_plain_form_of_an_effect_is_refused_on_the_loop_instead_of_hanging(
    database: Database, stream: Stream
) -> None:
    worker, told = worker_for(database), list[str]()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        try:
            with task.effect("charge"):
                pass
        except PfsupError as error:
            told.append(str(error))

    stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert told == ["cannot use 'with task.effect(...)' on the worker's loop: write 'async with task.effect(...)'"]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_result_and_settlement_are_one_commit(
    database: Database, owner: Owner, stream: Stream, plain: bool
) -> None:
    worker = worker_for(database)

    async def paint(task: Task) -> None:
        async with task.transaction() as conn:
            await conn.execute("INSERT INTO results VALUES (%s)", [task.id])
            assert owner.status(task.id) == "running"
        assert (owner.status(task.id), results(owner)) == ("consumed", [task.id])

    def paint_plain(task: Task) -> None:
        with task.transaction() as conn:
            conn.execute("INSERT INTO results VALUES (%s)", [task.id])
            assert owner.status(task.id) == "running"
        assert (owner.status(task.id), results(owner)) == ("consumed", [task.id])

    worker.actor("paint")(paint_plain if plain else paint)
    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.row(number).last_error, owner.status(number)) == (None, "consumed")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_late_result_is_lost_with_its_transaction_and_written_down(
    database: Database, owner: Owner, stream: Stream, plain: bool
) -> None:
    worker, raised = worker_for(database), list[type[Exception]]()

    async def paint(task: Task) -> None:
        try:
            async with task.transaction() as conn:
                await conn.execute("INSERT INTO results VALUES (1)")
                owner.take_away(task.id)
        except Late as late:
            raised.append(type(late))
            raise

    def paint_plain(task: Task) -> None:
        try:
            with task.transaction() as conn:
                conn.execute("INSERT INTO results VALUES (1)")
                owner.take_away(task.id)
        except Late as late:
            raised.append(type(late))
            raise

    worker.actor("paint")(paint_plain if plain else paint)
    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (raised, results(owner), owner.status(number)) == ([Late], [], "pending")
    assert "reported consumed" in owner.value("SELECT reason FROM pfsup.audit_log WHERE action = 'late'")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_call_that_was_made_by_a_run_taken_for_lost_stays_unknown_and_is_written_down(
    database: Database, owner: Owner, stream: Stream, plain: bool
) -> None:
    """The person who decides learns that the call came to its end."""
    worker = worker_for(database)

    async def paint(task: Task) -> None:
        async with task.effect():
            owner.lose(task.id)

    def paint_plain(task: Task) -> None:
        with task.effect():
            owner.lose(task.id)

    worker.actor("paint")(paint_plain if plain else paint)
    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.status(number), owner.value("SELECT state FROM pfsup.dispatch_effects")) == ("unknown", "unknown")
    assert "reported consumed" in owner.value("SELECT reason FROM pfsup.audit_log WHERE action = 'late'")


async def test_transaction_that_failed_may_be_tried_again_by_the_function(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        for turn in range(2):
            try:
                async with task.transaction() as conn:
                    await conn.execute("INSERT INTO results VALUES (%s)", [turn])
                    if turn == 0:
                        raise ConnectionError
            except ConnectionError:
                continue

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")
    assert results(owner) == [1]


async def test_run_that_its_own_sql_settled_is_settled_once(database: Database, owner: Owner, stream: Stream) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        owner.rows("SELECT pfsup.settle(%s, %s, 'consumed')", task.id, task.token)

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert owner.status(number) == "consumed"
    assert owner.value("SELECT count(*) FROM pfsup.audit_log") == 0


async def test_drain_finishes_what_runs_and_leaves_no_name_in_the_group(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, begun, go = worker_for(database), asyncio.Event(), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        begun.set()
        await go.wait()

    number = stream.deliver()
    async with serving(worker) as stop:
        await asyncio.wait_for(begun.wait(), 30)
        stop.set()
        assert owner.status(number) == "running"
        go.set()
    assert (owner.status(number), stream.length(), stream.consumers()) == ("consumed", 0, [])


async def test_run_that_does_not_end_within_the_drain_goes_back_uncharged(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, begun = worker_for(database, drain_s=0.0), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        begun.set()
        await asyncio.Event().wait()

    number = stream.deliver()
    async with serving(worker):
        await asyncio.wait_for(begun.wait(), 30)
    row = owner.row(number)
    assert (row.status, row.attempts, stream.is_empty()) == ("pending", 0, True)
    assert row.available_at <= owner.value("SELECT clock_timestamp()")


async def test_run_drained_inside_an_effect_is_left_to_its_lease(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, begun = worker_for(database, drain_s=0.0), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        async with task.effect("charge"):
            begun.set()
            await asyncio.Event().wait()

    number = stream.deliver()
    async with serving(worker):
        await asyncio.wait_for(begun.wait(), 30)
    assert (owner.status(number), owner.row(number).effect) == ("running", "begun")
