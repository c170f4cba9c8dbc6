"""A worker can be held between two of its own steps: what is written then, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from pfsup.shared.points import Points
from pfsup.shared.worker.outcomes import Retry
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import Stream, serving, stream_of
from support.runs import Owner
from support.waiting import auntil


class Held(Points):
    """Notes what is reached, and stays at `name` until `go`."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.go = asyncio.Event()
        self.reached: list[tuple[str, object]] = []

    async def reach(self, name: str, **facts: object) -> None:
        self.reached.append((name, facts["dispatch_id"]))
        if name == self.name:
            await self.go.wait()


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        yield found


def worker_at(database: Database, points: Points) -> Worker:
    """A worker of queue `paint` that is told of at `points`."""
    return Worker(database=database.worker_url, redis=database.redis_url, queues=["paint"], points=points)


@pytest.mark.parametrize(
    ("point", "status", "ran"),
    [("read", "sent", 0), ("begun", "running", 0), ("settled", "consumed", 1)],
)
@pytest.mark.parametrize("within", [False, True], ids=["returns", "settles within its transaction"])
async def test_worker_held_at_a_point_has_done_what_comes_before_and_nothing_more(
    database: Database, owner: Owner, stream: Stream, *, point: str, status: str, ran: int, within: bool
) -> None:
    points, runs = Held(point), list[int]()
    worker = worker_at(database, points)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        runs.append(task.id)
        if within:
            async with task.transaction():
                pass

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: (point, number) in points.reached)
        assert (owner.status(number), len(runs), len(stream.pending())) == (status, ran, 1)
        points.go.set()
        await auntil(stream.is_empty)
    assert (owner.status(number), points.reached) == ("consumed", [(p, number) for p in ("read", "begun", "settled")])


async def test_message_of_a_run_that_has_ended_is_read_and_comes_to_no_other_point(
    database: Database, owner: Owner, stream: Stream
) -> None:
    points = Held()
    worker = worker_at(database, points)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        del task

    number = stream.deliver()
    async with serving(worker):
        await auntil(lambda: owner.status(number) == "consumed" and stream.is_empty())
        points.reached.clear()
        stream.write(number)
        await auntil(lambda: bool(points.reached) and stream.is_empty())
    assert points.reached == [("read", number)]


async def test_run_that_is_to_be_tried_again_is_settled_too(database: Database, owner: Owner, stream: Stream) -> None:
    points = Held()
    worker = worker_at(database, points)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        raise Retry(3600)

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    assert (owner.status(number), points.reached[-1]) == ("pending", ("settled", number))
