"""Worker: a message from the stream to its end, against real servers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from typing import Any

import pytest
from pfsup.config.errors import PfsupError
from pfsup.shared.worker.outcomes import Reject, Retry, Snooze, Unknown
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import Stream, serving, stream_of
from support.runs import Owner, owner_of
from support.waiting import auntil, until


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        yield found


def worker_for(database: Database, **arguments: Any) -> Worker:
    """A worker of queue `paint`."""
    arguments = {"queues": ["paint"]} | arguments
    return Worker(database=database.worker_url, redis=database.redis_url, **arguments)


async def test_message_is_run_settled_and_ended(database: Database, owner: Owner, stream: Stream) -> None:
    worker, seen = worker_for(database), list[Task]()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        seen.append(task)

    number = stream.deliver(payload={"size": 3}, tenant="t1", headers={"trace": "x"})
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")
        await auntil(stream.is_empty)
    (task,) = seen
    assert (task.id, task.actor, task.aggregate_id, task.payload) == (number, "paint", "7", {"size": 3})
    assert (task.headers, task.tenant, task.attempt, task.deliveries, task.recoveries) == (
        {"trace": "x"},
        "t1",
        1,
        1,
        0,
    )
    assert (task.effect, task.effect_ref) == ("none", None)
    assert owner.row(number).worker == "c1"


async def test_plain_function_runs_in_a_thread_of_its_own(database: Database, owner: Owner, stream: Stream) -> None:
    worker, threads = worker_for(database), list[threading.Thread]()

    @worker.actor("paint")
    def paint(task: Task) -> None:
        del task
        threads.append(threading.current_thread())

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("raised", "end"),
    [
        (Retry(3600), ("pending", 1, None)),
        (Retry(reason="again"), ("pending", 1, "again")),
        (Snooze(3600), ("pending", 0, None)),
        (Reject("no"), ("rejected", 0, "no")),
        (Unknown("who knows"), ("unknown", 0, "who knows")),
        (ValueError("bad\x00\x1b[1m\ud800"), ("pending", 1, "ValueError: bad\\x00\\x1b[1m\\ud800")),
    ],
    ids=["retry", "back-off", "snooze", "reject", "unknown", "error"],
)
async def test_what_a_function_raises_ends_its_run_as_it_says(
    database: Database, stream: Stream, raised: Exception, end: tuple[str, int, str | None], plain: bool
) -> None:
    worker = worker_for(database)

    def fail(task: Task) -> None:
        raise raised

    async def fail_async(task: Task) -> None:
        raise raised

    worker.actor("paint")(fail if plain else fail_async)
    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    row = stream.owner.row(number)
    assert (row.status, row.attempts, row.last_error) == end


async def test_plain_function_that_exits_is_a_failed_run(database: Database, owner: Owner, stream: Stream) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    def paint(task: Task) -> None:
        raise SystemExit("x")

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert owner.row(number).last_error == "RuntimeError: the function raised SystemExit('x')"


async def test_no_more_messages_are_in_hand_than_there_are_places(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, go = worker_for(database, concurrency=2, queues=["paint", "b", "c"]), asyncio.Event()
    running, most = 0, 0

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    numbers = [stream.deliver() for _ in range(7)]
    async with serving(worker):
        await auntil(lambda: running == 2)
        assert len(stream.pending()) == 2
        go.set()
        await auntil(lambda: all(owner.status(n) == "consumed" for n in numbers))
    assert most == 2


async def test_unknown_actor_is_left_alone_and_said_once(
    database: Database, owner: Owner, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_for(database, concurrency=1)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    strange = [stream.deliver(actor="print") for _ in range(3)]
    number = stream.deliver()
    with caplog.at_level(logging.WARNING, logger="pfsup.worker"):
        async with serving(worker):
            await auntil(lambda: owner.status(number) == "consumed")
            await auntil(lambda: stream.length() == 3)
    assert [owner.status(n) for n in strange] == ["sent"] * 3
    assert len(stream.pending()) == 3
    assert [r.message for r in caplog.records if "print" in r.message] == [
        "no function for actor print here: its messages are left for others"
    ]


async def test_duplicates_run_once(database: Database, owner: Owner, stream: Stream) -> None:
    worker, runs = worker_for(database), 0

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        nonlocal runs
        runs += 1

    number = stream.deliver()
    for _ in range(5):
        stream.write(number)
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (runs, owner.status(number)) == (1, "consumed")


async def test_message_of_another_installation_and_garbage_are_left_and_hold_nothing_up(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database, concurrency=1)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    foreign = owner.stage()
    stream.write(foreign, source="other/1")
    owner.mark(foreign)
    stream.client.xadd(stream.name, {"hello": "world"})
    stream.write(4, v="2")
    stream.write(0, dispatch_id="9" * 40)
    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")
        await auntil(lambda: stream.length() == 4)
    assert owner.status(foreign) == "sent"


async def test_paused_actors_message_is_ended_and_its_row_waits(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    owner.rows("INSERT INTO pfsup.controls (kind, name, who, why) VALUES ('actor', 'paint', 'me', 'test')")
    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert owner.status(number) == "pending"


async def test_row_that_is_locked_for_a_moment_is_asked_for_again(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    number = stream.deliver()
    with owner_of(database) as locker:
        locker.rows("BEGIN")
        locker.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", number)
        async with serving(worker):
            await auntil(lambda: len(stream.pending()) == 1)
            locker.rows("COMMIT")
            await auntil(lambda: owner.status(number) == "consumed")


async def test_leases_are_prolonged_while_a_function_blocks_the_loop(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database, lease_s=1.0)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        with owner_of(database) as looker:
            begun = looker.row(task.id)
            # Blocks the loop on purpose: only a thread of its own can move the lease on past two of its lengths.
            until(lambda: (looker.row(task.id).lease_expires_at - begun.started_at).total_seconds() > 2.5)

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed")


async def test_run_past_its_deadline_is_cancelled_and_charged(database: Database, owner: Owner, stream: Stream) -> None:
    worker = worker_for(database, lease_s=1.0)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        owner.rows("UPDATE pfsup.async_dispatches SET deadline_at = clock_timestamp()")
        await asyncio.Event().wait()

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "pending")
    assert owner.row(number).attempts == 1
    assert owner.row(number).last_error.startswith("cancelled: it ran longer")


async def test_run_that_lost_its_row_is_cancelled_and_its_message_ended(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker, cancelled = worker_for(database, lease_s=1.0), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        owner.take_away(task.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    number = stream.deliver()
    async with serving(worker):
        await asyncio.wait_for(cancelled.wait(), 30)
        await auntil(stream.is_empty)
    assert (owner.status(number), owner.row(number).attempts) == ("pending", 0)


async def test_result_that_comes_late_changes_nothing_and_is_written_down(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        owner.take_away(task.id)

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.status(number), owner.row(number).attempts) == ("pending", 0)
    assert owner.one("SELECT reason FROM pfsup.audit_log WHERE action = 'late'").reason.startswith(
        "worker c1 reported consumed at "
    )


async def test_messages_of_a_consumer_that_died_are_gone_on_with_under_its_name(
    database: Database, owner: Owner, stream: Stream
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    numbers = [stream.deliver() for _ in range(3)]
    stream.client.xgroup_create(stream.name, "pfsup", id="0")
    given = stream.client.xreadgroup("pfsup", "c1", {stream.name: ">"}, count=3)
    stream.client.xdel(stream.name, given[0][1][0][0])
    async with serving(worker, consumer="c1"):
        await auntil(stream.is_empty)
    assert [owner.status(n) for n in numbers] == ["sent", "consumed", "consumed"]


async def test_group_that_vanished_is_made_again(database: Database, owner: Owner, stream: Stream) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    first = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(first) == "consumed")
        stream.client.flushall()
        second = stream.deliver()
        await auntil(lambda: owner.status(second) == "consumed")
        await auntil(stream.is_empty)


def test_actor_cannot_be_registered_twice(database: Database) -> None:
    worker = worker_for(database)
    worker.actor("paint")(print)
    with pytest.raises(PfsupError, match="cannot register actor paint twice"):
        worker.actor("paint")(print)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"lease_s": 0.5}, {"queues": []}, {"queues": "paint"}])
def test_impossible_worker_is_refused(database: Database, wrong: dict[str, Any]) -> None:
    with pytest.raises(PfsupError, match="cannot make a worker"):
        worker_for(database, **wrong)
