"""The bare loop that drain is compared with: claim 100, XADD them in one pipeline, mark them, again, one after another.

It has what a correct outbox cannot leave out (a row is marked only after it was sent, under a lease) and nothing more:
no overlap of the three steps, no shares between queues, no result for each row, no breaker.
Called as: bare_drain.py POSTGRESQL_URL REDIS_URL STREAM; starts when a line arrives on standard input, ends by itself.
"""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import redis

TABLE = """
CREATE SCHEMA IF NOT EXISTS bare;
CREATE TABLE bare.backlog (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor        text NOT NULL,
    aggregate    text NOT NULL,
    payload      jsonb,
    status       text NOT NULL DEFAULT 'pending',
    available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    staged_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until  timestamptz,
    sent_at      timestamptz,
    sink_ref     text
) WITH (fillfactor = 70);
CREATE INDEX backlog_due ON bare.backlog (available_at, id) WHERE status = 'pending';
"""
CLAIM = b"""
UPDATE bare.backlog SET lease_until = clock_timestamp() + interval '30 seconds' WHERE id IN (
    SELECT id FROM bare.backlog
    WHERE status = 'pending' AND available_at <= now() AND (lease_until IS NULL OR lease_until < now())
    ORDER BY available_at, id LIMIT 100 FOR UPDATE SKIP LOCKED
) RETURNING id, actor, aggregate, staged_at::text
"""
MARK = b"""
UPDATE bare.backlog b SET status = 'sent', sent_at = clock_timestamp(), lease_until = NULL, sink_ref = s.ref
FROM unnest(%s::bigint[], %s::text[]) AS s(id, ref) WHERE b.id = s.id AND b.status = 'pending'
"""


def open_redis(url: str) -> Any:
    """A client; Any, because redis-py leaves its keyword arguments untyped."""
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - see above


def main(postgresql_url: str, redis_url: str, stream: str) -> None:
    """Move every due row into the stream, batch after batch."""
    conn = psycopg.connect(postgresql_url, autocommit=True)
    client = open_redis(redis_url)
    client.ping()
    conn.execute(b"SELECT set_config('jit', 'off', false)")
    print("ready", flush=True)
    sys.stdin.readline()
    while rows := conn.execute(CLAIM, prepare=True).fetchall():
        with client.pipeline(transaction=False) as pipeline:
            for row_id, actor, aggregate, staged_at in rows:
                pipeline.xadd(
                    stream, {"dispatch_id": row_id, "actor": actor, "aggregate_id": aggregate, "staged_at": staged_at}
                )
            references = [reference.decode() for reference in pipeline.execute()]
        conn.execute(MARK, ([row[0] for row in rows], references), prepare=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
