"""The bare loop that latency is compared with: LISTEN, claim, XADD, and nothing else.

No lease, no mark, no retry, no breaker, no drain, no shares between queues: a row that this loop claimed and did not
send is lost. It is what an engineer writes in an afternoon, and as fast as this shape gets in Python.
Called as: bare_latency.py POSTGRESQL_URL REDIS_URL STREAM
"""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import redis.asyncio as redis
import uvloop

TABLE = """
CREATE SCHEMA IF NOT EXISTS bare;
CREATE TABLE bare.jobs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor     text NOT NULL,
    aggregate text NOT NULL,
    payload   jsonb,
    status    text NOT NULL DEFAULT 'pending',
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX jobs_due ON bare.jobs (id) WHERE status = 'pending';
CREATE FUNCTION bare.notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NOTIFY bare_jobs; RETURN NULL; END';
CREATE TRIGGER jobs_notify AFTER INSERT ON bare.jobs FOR EACH STATEMENT EXECUTE FUNCTION bare.notify();
"""
CLAIM = b"""
UPDATE bare.jobs SET status = 'sent' WHERE id IN (
    SELECT id FROM bare.jobs WHERE status = 'pending' ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED
) RETURNING id, actor, aggregate
"""


async def send_due(conn: psycopg.AsyncConnection, client: Any, stream: str) -> None:
    """Claim and send until nothing is due."""
    while rows := await (await conn.execute(CLAIM, prepare=True)).fetchall():
        async with client.pipeline(transaction=False) as pipeline:
            for row_id, actor, aggregate in rows:
                pipeline.xadd(stream, {"dispatch_id": row_id, "actor": actor, "aggregate_id": aggregate})
            await pipeline.execute()


def open_redis(url: str) -> Any:
    """A client; Any, because redis-py leaves its keyword arguments untyped."""
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - see above


async def main(postgresql_url: str, redis_url: str, stream: str) -> None:
    """Send what is committed, until the process is ended."""
    listener = await psycopg.AsyncConnection.connect(postgresql_url, autocommit=True)
    conn = await psycopg.AsyncConnection.connect(postgresql_url, autocommit=True)
    client = open_redis(redis_url)
    await listener.execute(b"LISTEN bare_jobs")
    print("ready", flush=True)
    while True:
        await send_due(conn, client, stream)
        async for _ in listener.notifies(timeout=1, stop_after=1):
            pass


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
