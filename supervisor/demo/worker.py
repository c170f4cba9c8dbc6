"""A worker process of the demo: the shop's three functions and the product's five, each with its witness.

Called as: python -m pfsup.supervisor.demo.worker URL REDIS_URL SCHEMA PROVIDER [DIES_AT [ACTOR]]; ends on SIGTERM.
DIES_AT names the boundary (boundaries.py) at which it stands still for ever, to be killed; with a task of ACTOR only.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

import psycopg
import uvloop

from ...config.values import Database, Log, Pool
from ...shared.db.pool import open_pool
from ...shared.db.queries import Queries, load_queries
from ...shared.log import configure
from ...shared.points import NO_POINTS, Points
from ...shared.worker.outcomes import Reject, Retry
from ...shared.worker.task import Task
from ...shared.worker.worker import Worker
from .boundaries import Boundary, DiesAt
from .orders import LEASE_S, QUEUES, RETRY_S
from .product.actors import register
from .product.desk import Desk, product_queries
from .product.outside import Outside

CONCURRENCY = 10
WORK_S = 0.02  # what a piece of work takes in the mean


class Functions:
    """What the shop's workers do. Nothing is written by a run that fails."""

    def __init__(self, url: str, queries: Queries, desk: Desk) -> None:
        self._url = url
        self._queries = queries
        self._desk = desk

    async def mail(self, task: Task) -> None:
        """Send a mail, or do what the order's plan says."""
        await self._follow_plan(task)
        await work()
        async with task.transaction() as conn:
            await conn.execute(self._queries["note_execution"], witness(task, 1, "done"))

    async def render(self, task: Task) -> None:
        """Have an image rendered outside, or do what the order's plan says. One that is there is not asked for."""
        await self._follow_plan(task)
        async with task.effect(ref=task.aggregate_id) as effect:
            await self._desk.at("effect_begun", task)
            if not effect.done:
                key = str(task.id)
                effect.ref = await self._desk.outside.call(task.actor, key=key, task=task.aggregate_id, index=0)
        await self._desk.at("effect_done", task)
        async with task.transaction() as conn:
            await conn.execute(self._queries["note_execution"], witness(task, 1, "done"))

    async def deliver(self, task: Task) -> None:
        """Deliver the newest wish of a job: the business row first, the witness, then the settlement."""
        await work()
        async with task.transaction() as conn:
            row = await (await conn.execute(self._queries["deliver"], {"aggregate": task.aggregate_id})).fetchone()
            await conn.execute(self._queries["note_execution"], witness(task, row[0] if row else 0, "done"))

    async def _follow_plan(self, task: Task) -> None:
        plan = task.payload["plan"]
        if plan == "retry" and task.attempt == 1:
            raise Retry(RETRY_S, "the first try fails, as planned")
        if plan == "reject":
            await self._refuse(task)

    async def _refuse(self, task: Task) -> None:
        """A final no, with its witness in the same transaction, settled by SQL on a connection of the shop's own.

        Raising Reject afterwards repeats the settlement, which changes nothing.
        """
        async with await psycopg.AsyncConnection.connect(self._url) as conn:
            await conn.execute(self._queries["note_execution"], witness(task, 1, "refused"))
            await conn.execute(self._queries["refuse"], {"id": task.id, "token": task.token})
        raise Reject("as planned")


async def work() -> None:
    """Take the time that a piece of work takes."""
    try:
        async with asyncio.timeout(random.expovariate(1 / WORK_S)):
            await asyncio.Event().wait()
    except TimeoutError:
        pass


def witness(task: Task, version: int, outcome: str) -> dict[str, object]:
    """The row that says: this was done, for that envelope, by this process."""
    return {
        "aggregate": task.aggregate_id,
        "version": version,
        "dispatch_id": task.id,
        "worker": str(os.getpid()),
        "outcome": outcome,
    }


async def serve(url: str, redis_url: str, schema: str, *, provider: str, points: Points) -> None:
    """Work until SIGTERM."""
    database = Database(url=url, schema=schema)
    worker = Worker(
        database=database,
        redis=redis_url,
        queues=sorted(set(QUEUES.values())),
        concurrency=CONCURRENCY,
        lease_s=LEASE_S,
        name="demo",
        points=points,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_pool(database, Pool(min=1, max=CONCURRENCY), application_name="product") as pool:
        queries, outside = product_queries(schema=schema), Outside(provider)
        desk = Desk(pool=pool, queries=queries, outside=outside, points=points, lease_s=LEASE_S)
        functions = Functions(url, load_queries(__package__ or "", "shop.sql", schema=schema), desk)
        worker.actor("render_image")(functions.render)
        worker.actor("send_mail")(functions.mail)
        worker.actor("deliver")(functions.deliver)
        register(worker, desk)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.serve(stop)


def main(url: str, redis_url: str, schema: str, provider: str, *dies: str) -> None:
    """Be one worker process. `dies`: the boundary, and the actor if it is to be one's."""
    configure(Log(), who="worker")
    points = DiesAt(Boundary(dies[0]), *dies[1:]) if dies else NO_POINTS
    uvloop.run(serve(url, redis_url, schema, provider=provider, points=points))


if __name__ == "__main__":
    main(*sys.argv[1:])
