"""What the product's workers share: transactions, conditional writes, the fence, the provider, the named points.

A run is at a named point before each of its statements (the statement's name), after each commit and after each call
outside: a worker that is killed at any of them must leave something that recovery can place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import namedtuple_row
from psycopg_pool import AsyncConnectionPool

from ....shared.db.connect import Connection, limited
from ....shared.db.queries import Queries, load_queries
from ....shared.points import NO_POINTS, Points
from ....shared.worker.outcomes import Late
from ....shared.worker.task import Task
from .outside import Outside

Row = Any
Conn = psycopg.AsyncConnection[Any]


def product_queries(*, schema: str = "pfsup", productflow: str = "productflow") -> Queries:
    """The statements of product.sql."""
    return load_queries(__package__ or "", "product.sql", schema=schema, productflow=productflow)


def new_attempt() -> str:
    """The name of one run's right to a row. Not the envelope's token, which is a right of its own."""
    return str(uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where the functions of one worker process work. `lease_s`: what a run asks for, as its Worker does."""

    pool: AsyncConnectionPool[Connection]
    queries: Queries
    outside: Outside
    points: Points = NO_POINTS
    lease_s: float = 60.0

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Conn]:
        """A transaction that settles nothing: claims, intents, progress."""
        async with self.pool.connection() as conn, limited(conn):
            yield conn

    @asynccontextmanager
    async def settling(self, task: Task) -> AsyncGenerator[Conn]:
        """The transaction of the result, with the settlement as its last call."""
        async with task.transaction() as conn:
            yield conn
            await self.at("stored", task)
        await self.at("settled", task)

    async def at(self, point: str, task: Task) -> None:
        """Come to a named point."""
        await self.points.reach(point, id=task.aggregate_id, actor=task.actor)

    async def find(self, conn: Conn, task: Task, name: str, **more: Any) -> Row | None:
        """Run a statement about the task's row; its one answer, None where there is none."""
        await self.at(name, task)
        async with conn.cursor(row_factory=namedtuple_row) as cursor:
            await cursor.execute(self.queries[name], self._known(task) | more)
            return await cursor.fetchone() if cursor.description else None

    async def write(self, conn: Conn, task: Task, name: str, *, result: bool = False, **more: Any) -> None:
        """A write that holds only while the row is this run's. Late where it is not: then its transaction is lost.

        `result`: that transaction carries the run's result, which a person must be told of.
        """
        await self.at(name, task)
        cursor = await conn.execute(self.queries[name], self._known(task) | more)
        if cursor.rowcount != 1:
            raise Late(f"cannot {name}: {task.actor} {task.aggregate_id} is no longer this run's", claimed=result)

    async def fence(self, conn: Conn, task: Task) -> None:
        """Hold the envelope, or raise Late: nothing that follows may begin. The last statement of a transaction.

        Under the locks of the rows before it, so recovery cannot take them between the look and the commit.
        """
        row = await self.find(conn, task, "fence")
        if row is None or row.verdict != "ok":
            raise Late(f"cannot go on: dispatch {task.id} is {row.verdict if row else 'gone'}")

    async def call(self, task: Task, *, key: str, index: int, owner: str = "") -> str:
        """Ask the provider, with no lock held; what it made. `owner`: the row that asks, else the task's own."""
        ref = await self.outside.call(task.actor, key=key, task=owner or task.aggregate_id, index=index)
        await self.at("called", task)
        return ref

    @asynccontextmanager
    async def renewing(self, task: Task, name: str, **more: Any) -> AsyncGenerator[None]:
        """Prolong a row's own lease every third of it, with the statement `name`, while the block runs."""
        renews = asyncio.create_task(self._renew(name, self._known(task) | more))
        try:
            yield
        finally:
            renews.cancel()

    async def _renew(self, name: str, asked: Mapping[str, Any]) -> None:
        while True:
            await _pause(self.lease_s / 3)
            try:
                async with self.transaction() as conn:
                    await conn.execute(self.queries[name], asked)
            except psycopg.Error:
                continue  # the lease ends, or the next time prolongs it

    def _known(self, task: Task) -> dict[str, Any]:
        return {"id": task.aggregate_id, "dispatch_id": task.id, "token": task.token, "lease_s": self.lease_s}


async def _pause(seconds: float) -> None:
    limit = time.monotonic() + seconds
    while (left_s := limit - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), left_s)
        except TimeoutError:
            return
