"""Workers of the product in processes of their own, to be killed or held at the n-th named point."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from pfsup.config import values
from pfsup.shared.db.pool import open_pool
from pfsup.shared.points import NO_POINTS, Points
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from pfsup.supervisor.demo.product.actors import register
from pfsup.supervisor.demo.product.desk import Desk, product_queries
from pfsup.supervisor.demo.product.outside import Outside

from .database import Database
from .dispatcher import kill

LONG_S = 3600.0  # no lease ends and nothing is prolonged unless the test says so


class KilledAt(Points):
    """Says the name of every point on a pipe and kills the process at the n-th, unless it is 0."""

    def __init__(self, nth: int, pipe: int) -> None:
        self.left = nth
        self.pipe = pipe

    async def reach(self, name: str, **facts: object) -> None:
        del facts
        os.write(self.pipe, f"{name}\n".encode())
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class HeldAt(Points):
    """Stands still at the n-th point, the whole process: says so on `said`, and goes on at a byte on `go`."""

    def __init__(self, nth: int, said: int, go: int) -> None:
        self.left = nth
        self.said = said
        self.go = go

    async def reach(self, name: str, **facts: object) -> None:
        del name, facts
        self.left -= 1
        if self.left == 0:
            os.write(self.said, b"!")
            os.read(self.go, 1)


@contextmanager
def forked(work: Callable[[], object]) -> Generator[int]:
    """A child that does `work` and ends without the test's own endings; killed and reaped at the end of the block."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        kill(pid)


def run_to_its_end(work: Callable[[int], object]) -> tuple[list[str], int]:
    """Fork a child that is given a pipe, and wait for its end: the points it came to, and the signal that ended it."""
    heard, said = os.pipe()
    with forked(lambda: work(said)) as pid, os.fdopen(heard, "rb") as lines:
        os.close(said)
        points = lines.read().decode().splitlines()  # until the child's end closes its side
        _, status = os.waitpid(pid, 0)
    return points, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def work(database: Database, outside: Path, *, stream: str, points: Points = NO_POINTS) -> None:
    """Be a worker of the product until killed."""
    uvloop.run(serve(database, outside, stream=stream, points=points, stop=asyncio.Event()))


async def serve(
    database: Database, outside: Path, *, stream: str, points: Points, stop: asyncio.Event, lease_s: float = LONG_S
) -> None:
    """A worker of the product that reads one stream, until `stop`."""
    where = values.Database(url=database.worker_url)
    worker = Worker(
        database=where, redis=database.redis_url, queues={"all": stream}, concurrency=4, lease_s=lease_s, drain_s=5
    )
    pool = open_pool(where, values.Pool(min=1, max=4), application_name="product")
    async with pool:
        desk = Desk(pool=pool, queries=product_queries(), outside=Outside(str(outside)), points=points, lease_s=lease_s)
        register(worker, desk)
        worker.actor("mail")(Mail(desk))
        await worker.serve(stop, consumer=f"c{os.getpid()}")


@dataclass(frozen=True, slots=True)
class Mail:
    """An actor without a business domain: pfsup's own journal is the only one that it has."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """One call outside within an effect, then the end."""
        await self.desk.at("begun", task)
        async with task.effect("main", ref=str(task.id)) as effect:
            await self.desk.at("effect_begun", task)
            if not effect.done:
                effect.ref = await self.desk.call(task, key=str(task.id), index=0)
        await self.desk.at("effect_done", task)
        async with self.desk.settling(task):
            pass
