"""`Worker`: functions by name, run for the messages of some queues (DESIGN 3.6)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from redis.asyncio import Redis as RedisClient
from redis.asyncio.retry import Retry as RedisRetry
from redis.backoff import NoBackoff

from ...config.errors import PfsupError
from ...config.values import Database, Pool, Redis
from ..db.connect import connect
from ..db.pool import open_pool
from ..drain import Drain
from ..points import NO_POINTS, Points
from ..text import printable
from .beats import Beats
from .calls import Caller, Calls, worker_queries
from .ender import Ender
from .port import PoolPort
from .reader import Reader
from .runner import Actor, Runner
from .session import Session
from .task import Task

log = logging.getLogger("pfsup.worker")

Function = TypeVar("Function", bound=Callable[[Task], Any])

_BLOCK_S = 0.5  # how long a read waits, so how late a drain may be noticed


class Worker:
    """Runs functions for the messages of some queues: begin, run, settle, end the message.

    `database` and `redis`: an address, or the section of the configuration. `queues`: their names, or names with the
    streams they have; else a queue's stream is `pfsup:<name>:<queue>`. At most `concurrency` messages are in hand. The
    lease of a run is `lease_s` seconds (1 s to 1 day), prolonged every third of it. A drain takes at most `drain_s`
    seconds, and 3 more to settle what had to be stopped.

    `points` is for tests and demonstrations: told of each run, with its dispatch_id, when its message is "read", when
    it has "begun" and the function not, and when it is "settled" and its message not ended.

    A database or Redis that is away is waited for; nothing is lost. Every delivery may come more than once; one run at
    a time has the row.
    """

    def __init__(
        self,
        *,
        database: str | Database,
        redis: str | Redis,
        queues: Sequence[str] | Mapping[str, str],
        concurrency: int = 10,
        lease_s: float = 60.0,
        name: str = "pfsup",
        drain_s: float = 25.0,
        points: Points = NO_POINTS,
    ) -> None:
        if concurrency < 1 or not 1 <= lease_s <= 86400 or not queues or isinstance(queues, str):
            raise PfsupError(
                "cannot make a worker: it needs a list of queues, concurrency of 1 or more and lease_s of 1 to 86400"
            )
        self._database = Database(url=database) if isinstance(database, str) else database
        self._redis = Redis(url=redis) if isinstance(redis, str) else redis
        self._streams = _streams(queues, name)
        self._concurrency = concurrency
        self._lease_s = float(lease_s)
        self._drain_s = float(drain_s)
        self._points = points
        self._actors: dict[str, Actor] = {}

    def __repr__(self) -> str:
        return f"<Worker actors={sorted(self._actors)} streams={self._streams} concurrency={self._concurrency}>"

    def actor(self, name: str) -> Callable[[Function], Function]:
        """Register a function for the actor `name`: an async one runs on the loop, a plain one in a thread.

        Returning ends the run as consumed. Retry, Snooze, Reject and Unknown end it as they say; any other exception is
        a retry after the actor's back-off, with its text as the row's last_error.
        """

        def register(function: Function) -> Function:
            if name in self._actors:
                raise PfsupError(f"cannot register actor {printable(name, limit=128)} twice")
            self._actors[name] = Actor(name=name, function=function, is_plain=not _is_async(function))
            return function

        return register

    def run(self, *, consumer: str | None = None) -> None:
        """Work in this process's main thread until SIGTERM or SIGINT, then drain. A second signal ends the waiting.

        `consumer`: the name in the stream's group, `<host>:<pid>` by default. A restarted process with the same name
        goes on with the messages it had in hand. Threads of plain functions that do not end do not keep the process.
        """
        import uvloop

        uvloop.run(self._run(consumer))

    async def serve(self, stop: asyncio.Event, *, consumer: str | None = None) -> None:
        """Work on the running loop until `stop` is set, then drain."""
        drain = Drain()

        async def request() -> None:
            await stop.wait()
            drain.request(self._drain_s)

        watch = asyncio.create_task(request())
        try:
            await self._serve(drain, consumer)
        finally:
            watch.cancel()

    async def _serve(self, drain: Drain, consumer: str | None) -> None:
        async with AsyncExitStack() as stack:
            session = await self._session(stack, drain, consumer or f"{socket.gethostname()}:{os.getpid()}")
            log.info("reads %s for %s", ", ".join(self._streams), ", ".join(sorted(self._actors)) or "no actor")
            await session.run()
        log.info("has ended")

    async def _run(self, consumer: str | None) -> None:
        drain = Drain()

        def on_signal() -> None:
            drain.request(0.0 if drain.requested else self._drain_s)

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        await self._serve(drain, consumer)

    async def _session(self, stack: AsyncExitStack, drain: Drain, consumer: str) -> Session:
        """Everything one stay needs, closed by `stack` in reverse order. Nothing here waits for a server."""
        queries = worker_queries(self._database.schema)
        caller = Caller(worker=printable(consumer, limit=200), lease_s=self._lease_s)
        name = f"pfsup:worker:{caller.worker}"[:63]
        # Each run may hold one in a transaction of its own; one more, so that others can always settle.
        pool = open_pool(self._database, Pool(min=1, max=self._concurrency + 1), application_name=name)
        stack.push_async_callback(pool.close, timeout=2.0)
        await pool.open(wait=False)
        open_connection = partial(connect, self._database, application_name=name)
        beats = Beats(partial(open_connection, autocommit=True), queries["beat_all"], lease_s=self._lease_s)
        stack.push_async_callback(asyncio.to_thread, beats.close)
        client = _client(self._redis)
        stack.push_async_callback(client.aclose)
        calls = Calls(pool, queries, caller)
        port = partial(PoolPort, pool=pool, calls=calls, beats=beats, connect=open_connection, settle=queries["settle"])
        runner = Runner(self._actors, calls=calls, beats=beats, port=port, drain=drain, points=self._points)
        reader = Reader(client, self._streams, group=self._redis.group, consumer=caller.worker, block_s=_BLOCK_S)
        return Session(
            runner,
            reader,
            Ender(reader.end),
            drain=drain,
            concurrency=self._concurrency,
            sweep_idle_s=max(60.0, self._lease_s),
        )


def _client(redis: Redis) -> RedisClient:
    """A client without retries of its own: one that repeats a read unseen would lose what the first one was given."""
    from ...config.secrets import secret

    return RedisClient.from_url(  # pyright: ignore[reportUnknownMemberType] - redis-py types **kwargs as unknown
        secret(redis.url, redis.url_file),
        retry=RedisRetry(NoBackoff(), 0),
        socket_timeout=redis.socket_timeout + _BLOCK_S,
        socket_connect_timeout=redis.socket_timeout,
        max_connections=8,
    )


def _streams(queues: Sequence[str] | Mapping[str, str], name: str) -> list[str]:
    named = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, "")
    return [stream or f"pfsup:{name}:{queue}" for queue, stream in named.items()]


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asks for a coroutine method
