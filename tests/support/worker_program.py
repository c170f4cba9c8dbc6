"""A worker process of the tests, consumer `c1` of queue `paint`: worker_program.py DATABASE_URL REDIS_URL [LEASE_S].

Each run leaves a row in public.runs. The payload's `at` says where it stops: at the advisory lock 7 while it runs
("begun"), inside its effect ("effect") or after it ("done"); whoever holds that lock decides how long. Actor `print` is
a plain function that stops while it runs.
"""

from __future__ import annotations

import sys

import psycopg
from pfsup import Task, Worker

HOLD = b"SELECT pg_advisory_xact_lock_shared(7)"


def main(database: str, redis: str, lease_s: str = "60") -> None:
    """Work until SIGTERM."""
    worker = Worker(database=database, redis=redis, queues=["paint"], concurrency=2, lease_s=float(lease_s))

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
                case "done":
                    async with task.effect() as call:
                        if not call.done:
                            await conn.execute(b"INSERT INTO public.calls VALUES (%s)", [task.id])
                    await conn.execute(HOLD)
                case _:
                    pass

    @worker.actor("print")
    def prints(task: Task) -> None:  # pyright: ignore[reportUnusedFunction] - registered
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(b"INSERT INTO public.runs VALUES (%s)", [task.id])
            conn.execute(HOLD)

    worker.run(consumer="c1")


if __name__ == "__main__":
    main(*sys.argv[1:])
