"""Worker: a database or Redis that goes away costs no work; entries that nobody ends are taken over."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio
from pfsup.config import values
from pfsup.shared.db.connect import connect
from pfsup.shared.worker.beats import Beats
from pfsup.shared.worker.calls import worker_queries
from pfsup.shared.worker.hold import Hold
from pfsup.shared.worker.reader import Reader
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import STREAM, Stream, serving, stream_of
from support.runs import Owner, owner_of, worker_of
from support.servers import RedisServer
from support.waiting import auntil


def worker_for(database: Database, redis_url: str) -> Worker:
    return Worker(database=database.worker_url, redis=redis_url, queues=["paint"])


async def test_worker_goes_on_after_redis_was_away(database: Database, owner: Owner, own_redis: RedisServer) -> None:
    worker = worker_for(database, own_redis.url)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    with stream_of(own_redis.url, owner) as stream:
        first = stream.deliver()
        async with serving(worker):
            await auntil(lambda: owner.status(first) == "consumed")
            own_redis.restart()
            second = stream.deliver()
            await auntil(lambda: owner.status(second) == "consumed")
            await auntil(stream.is_empty)


async def test_message_is_ended_once_redis_is_back(database: Database, owner: Owner, own_redis: RedisServer) -> None:
    worker, begun, go = worker_for(database, own_redis.url), asyncio.Event(), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        begun.set()
        await go.wait()

    with stream_of(own_redis.url, owner) as stream:
        number = stream.deliver()
        async with serving(worker):
            await asyncio.wait_for(begun.wait(), 30)
            own_redis.stop_frozen()
            go.set()
            await auntil(lambda: owner.status(number) == "consumed")
            own_redis.resume()
            await auntil(stream.is_empty)


async def test_run_is_settled_once_the_database_is_back(own_database: Database) -> None:
    worker, begun, go = worker_for(own_database, own_database.redis_url), asyncio.Event(), asyncio.Event()

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        begun.set()
        await go.wait()

    with owner_of(own_database) as owner, stream_of(own_database.redis_url, owner) as stream:
        number = stream.deliver()
        async with serving(worker):
            await asyncio.wait_for(begun.wait(), 30)
            own_database.server.stop()
            go.set()
            own_database.server.start()
            with owner_of(own_database) as again:
                await auntil(lambda: again.status(number) == "consumed")
                await auntil(lambda: stream.length() == 0)


async def test_message_read_while_the_database_is_away_is_begun_when_it_is_back(own_database: Database) -> None:
    worker = worker_for(own_database, own_database.redis_url)

    @worker.actor("paint")
    async def paint(task: Task) -> None: ...

    with owner_of(own_database) as owner, stream_of(own_database.redis_url, owner) as stream:
        number = stream.deliver()
        own_database.server.stop()
        async with serving(worker):
            await auntil(lambda: len(stream.pending()) == 1)
            own_database.server.start()
            with owner_of(own_database) as again:
                await auntil(lambda: again.status(number) == "consumed")


async def test_entries_that_another_consumer_never_ended_are_swept_up(database: Database, owner: Owner) -> None:
    with stream_of(database.redis_url, owner) as stream:
        numbers = [stream.deliver() for _ in range(5)]
        stream.client.xgroup_create(STREAM, "pfsup", id="0")
        stream.client.xreadgroup("pfsup", "dead", {STREAM: ">"})
        client: Any = redis.asyncio.Redis.from_url(database.redis_url)  # pyright: ignore[reportUnknownMemberType] - partial types
        async with client:
            reader = Reader(client, [STREAM], group="pfsup", consumer="c2", block_s=0.1)
            assert await reader.sweep(5, idle_s=3600) == []
            first, rest = await reader.sweep(2, idle_s=0), await reader.sweep(5, idle_s=0)
        swept = [int((fields or {})[b"dispatch_id"]) for _, _, fields in first + rest]
        assert swept == numbers
        assert _held_by(stream) == {"c2"}


def test_beats_end_with_their_connection_and_connect_again(database: Database, owner: Owner) -> None:
    settings = values.Database(url=database.worker_url)
    beats = Beats(
        lambda: connect(settings, application_name="beats-test", autocommit=True),
        worker_queries("pfsup")["beat_all"],
        lease_s=3600.0,
    )
    with worker_of(database) as worker:
        run = worker.begun(owner.sent())
    try:
        beats.hold(Hold(run.id, run.token))
        assert beats.beat_once()
        _end_sessions(database)
        assert not beats.beat_once()
        assert beats.beat_once()
        left_s = owner.value(
            "SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM pfsup.async_dispatches"
        )
        assert left_s > 3000
    finally:
        beats.close()


def _held_by(stream: Stream) -> set[str]:
    return {str(p["consumer"]) for p in stream.client.xpending_range(STREAM, "pfsup", "-", "+", 100)}


def _end_sessions(database: Database) -> None:
    with database.superuser() as conn:
        ended = conn.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'beats-test'"
        ).fetchall()
    assert ended == [(True,)]
