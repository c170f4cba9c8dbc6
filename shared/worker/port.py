"""How a task of `Worker` reaches the database: async over the pool, and from threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from ...config.errors import PfsupError
from ..backoff import Backoff
from ..db.connect import Connection, limited
from ..db.ready import is_away
from .beats import Beats
from .calls import Calls, EffectAnswer, late_is_told, settle_params
from .ender import pause
from .hold import Hold
from .outcomes import Late, Settlement

CONSUMED = Settlement(outcome="consumed")

# Our connections look into pg_catalog and pfsup's schema only; the function's own tables are where they usually are.
USERS_PATH = b"""SELECT pg_catalog.set_config('search_path', '"$user", public', true)"""


class PoolPort:
    """The database as one run of a Worker sees it. Lives on the worker's loop; the `_now` forms are for its threads."""

    __slots__ = ("_beats", "_calls", "_connect", "_hold", "_loop", "_pool", "_settle")

    def __init__(
        self,
        hold: Hold,
        *,
        pool: AsyncConnectionPool[Connection],
        calls: Calls,
        beats: Beats,
        connect: Callable[[], psycopg.Connection[Any]],
        settle: bytes,
    ) -> None:
        self._hold = hold
        self._pool = pool
        self._calls = calls
        self._beats = beats
        self._connect = connect
        self._settle = settle
        self._loop = asyncio.get_running_loop()

    async def write_effect(self, state: str, name: str, ref: str | None) -> EffectAnswer:
        """Persist one step of an effect, and remember what is open."""
        if state == "begun":
            self._hold.open_effects.add(name)  # before the answer: a lost answer leaves it open
        answer = await self._persist(state, name, ref)
        if state != "begun" or answer.verdict == "done":
            self._hold.open_effects.discard(name)
        return answer

    async def _persist(self, state: str, name: str, ref: str | None) -> EffectAnswer:
        """Again while the database is away, as long as the row is ours: the provider has answered, and a restart of the
        database would make that an unknown outcome (9 of 20 runs). Writing the same step twice changes nothing.
        """
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                return await self._calls.effect(self._hold, state, name, ref)
            except Exception as error:
                if self._hold.lost or not is_away(error) or isinstance(error, Late):
                    raise
                await pause(backoff.next_s())

    def write_effect_now(self, state: str, name: str, ref: str | None) -> EffectAnswer:
        """The same from a plain function's thread."""
        self._refuse_loop("with task.effect(...)")
        return asyncio.run_coroutine_threadsafe(self.write_effect(state, name, ref), self._loop).result()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        """A transaction that settles the run as its last call."""
        with self._settling():
            async with self._pool.connection() as conn, limited(conn):
                await conn.execute(USERS_PATH)
                yield conn
                self._beats.release(self._hold)
                await self._calls.settle_within(conn, self._hold, CONSUMED)

    @contextmanager
    def transaction_now(self) -> Generator[psycopg.Connection[Any]]:
        """The same from a plain function's thread, on a connection of its own."""
        self._refuse_loop("with task.transaction()")
        with self._settling(), self._connect() as conn:
            conn.execute(USERS_PATH)
            yield conn
            self._beats.release(self._hold)
            with late_is_told(claimed=True):
                conn.execute(self._settle, settle_params(self._hold, CONSUMED))

    @contextmanager
    def _settling(self) -> Generator[None]:
        """Settled when the block is left by its end. Until the settlement the beats go on; while it commits they would
        only see what this very transaction does, and call it late."""
        try:
            yield
        except BaseException:
            self._beats.hold(self._hold)  # the function may try again
            raise
        self._hold.settled = True

    def _refuse_loop(self, what: str) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self._loop:
            raise PfsupError(f"cannot use '{what}' on the worker's loop: write 'async {what}'")
