"""A worker process of the demo: three functions, each leaves its witness in the transaction that settles.

Called as: python -m pfsup.supervisor.demo.worker URL REDIS_URL SCHEMA; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

import psycopg

from ...config.values import Log
from ...shared.db.queries import Queries, load_queries
from ...shared.log import configure
from ...shared.worker.outcomes import Reject, Retry
from ...shared.worker.task import Task
from ...shared.worker.worker import Worker
from .orders import QUEUES, RETRY_S

CONCURRENCY = 10
LEASE_S = 5.0
WORK_S = 0.02  # what a piece of work takes in the mean


class Functions:
    """What the shop's workers do. Nothing is written by a run that fails."""

    def __init__(self, url: str, queries: Queries) -> None:
        self._url = url
        self._queries = queries

    async def make(self, task: Task) -> None:
        """Render an image or send a mail, or what the order's plan says."""
        plan = task.payload["plan"]
        if plan == "retry" and task.attempt == 1:
            raise Retry(RETRY_S, "the first try fails, as planned")
        if plan == "reject":
            await self._refuse(task)
        await work()
        async with task.transaction() as conn:
            await conn.execute(self._queries["note_execution"], witness(task, 1, "done"))

    async def deliver(self, task: Task) -> None:
        """Deliver the newest wish of a job: the business row first, the witness, then the settlement."""
        await work()
        async with task.transaction() as conn:
            row = await (await conn.execute(self._queries["deliver"], {"aggregate": task.aggregate_id})).fetchone()
            await conn.execute(self._queries["note_execution"], witness(task, row[0] if row else 0, "done"))

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


def main(url: str, redis_url: str, schema: str) -> None:
    """Work until SIGTERM."""
    configure(Log(), who="worker")
    functions = Functions(url, load_queries(__package__ or "", "shop.sql", schema=schema))
    worker = Worker(
        database=url,
        redis=redis_url,
        queues=sorted(set(QUEUES.values())),
        concurrency=CONCURRENCY,
        lease_s=LEASE_S,
        name="demo",
    )
    worker.actor("render_image")(functions.make)
    worker.actor("send_mail")(functions.make)
    worker.actor("deliver")(functions.deliver)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
