"""A worker process of the tests: python worker_program.py DATABASE_URL REDIS_URL; consumer `c1` of queue `paint`.

Each run leaves a row in public.runs. The payload's `at` says where it stops: at the advisory lock 7 while it runs
("begun") or inside its effect ("effect"); whoever holds that lock decides how long.
"""

from __future__ import annotations

import sys

import psycopg
from pfsup import Task, Worker

HOLD = b"SELECT pg_advisory_xact_lock_shared(7)"


def main(database: str, redis: str) -> None:
    """Work until SIGTERM."""
    worker = Worker(database=database, redis=redis, queues=["paint"], concurrency=2)

    @worker.actor("paint")
    async def paint(task: Task) -> None:  # pyright: ignore[reportUnusedFunction] - registered
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            await conn.execute(b"INSERT INTO public.runs VALUES (%s)", [task.id])
            match task.payload["at"]:
                case "begun":
                    await conn.execute(HOLD)
                case "effect":
                    async with task.effect():
                        await conn.execute(HOLD)
                case _:
                    pass

    worker.run(consumer="c1")


if __name__ == "__main__":
    main(*sys.argv[1:])
