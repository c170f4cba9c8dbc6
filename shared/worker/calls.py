"""The worker's calls of the outbox's functions: their parameters, answers and errors; the async form over a pool."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool

from ..db.connect import Connection, fetch
from ..db.queries import Queries, load_queries
from .hold import Hold
from .message import Message
from .outcomes import Late, Settlement


@dataclass(frozen=True, slots=True)
class Begun:
    """begin_work()'s answer; everything but `verdict` is None unless it is `go`."""

    verdict: str
    token: UUID
    aggregate_id: str
    payload: Any
    headers: dict[str, Any]
    tenant: str | None
    attempt: int
    max_attempts: int
    deliveries: int
    recoveries: int
    effect: str
    effect_ref: str | None
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class EffectAnswer:
    """`ok`, or `done`: an earlier run stored the result, `ref` is what it left."""

    verdict: str
    ref: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: the worker's name in the row, and the lease it asks for, in seconds."""

    worker: str
    lease_s: float


def worker_queries(schema: str) -> Queries:
    """The statements of queries.sql for `schema`."""
    return load_queries("pfsup.shared.worker", "queries.sql", schema=schema)


def begin_params(message: Message, caller: Caller) -> Mapping[str, Any]:
    return {
        "id": message.dispatch_id,
        "actor": message.actor,
        "worker": caller.worker,
        "lease_s": caller.lease_s,
        "source": message.source,
        "sink_ref": message.sink_ref,
    }


def settle_params(hold: Hold, settlement: Settlement) -> Mapping[str, Any]:
    return {
        "id": hold.id,
        "token": hold.token,
        "outcome": settlement.outcome,
        "error": settlement.error,
        "retry_in_s": settlement.retry_in_s,
    }


def effect_params(hold: Hold, state: str, name: str, ref: str | None) -> Mapping[str, Any]:
    return {"id": hold.id, "token": hold.token, "state": state, "name": name, "ref": ref}


def late_params(hold: Hold, settlement: Settlement, caller: Caller) -> Mapping[str, Any]:
    return {
        "id": hold.id,
        "token": hold.token,
        "worker": caller.worker,
        "claim": settlement.outcome,
        "error": settlement.error,
    }


def beat_params(holds: list[Hold], lease_s: float) -> Mapping[str, Any]:
    return {"ids": [h.id for h in holds], "tokens": [h.token for h in holds], "lease_s": lease_s}


@contextmanager
def late_is_told(*, claimed: bool = False) -> Generator[None]:
    """Turn PF412 (late) and PF404 (the row is gone) into Late. `claimed`: what was refused was a result."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in ("PF412", "PF404"):
            raise
        raise Late(error.diag.message_primary or "cannot write: this run came too late", claimed=claimed) from error


class Calls:
    """The functions as a worker calls them, each in a transaction of its own."""

    def __init__(self, pool: AsyncConnectionPool[Connection], queries: Queries, caller: Caller) -> None:
        self._pool = pool
        self._queries = queries
        self._caller = caller

    @property
    def caller(self) -> Caller:
        return self._caller

    async def begin(self, message: Message) -> Begun:
        """Ask to run `message`; raises psycopg.Error when the database is away or refuses the arguments."""
        return Begun(*await self._one("begin_work", begin_params(message, self._caller)))

    async def effect(self, hold: Hold, state: str, name: str, ref: str | None) -> EffectAnswer:
        """Persist one step of an effect. Late when the row is another's; with `done` the result is claimed.

        A lease that ended while nobody took the row (the database was away) is revived first.
        """
        params = effect_params(hold, state, name, ref)
        with late_is_told(claimed=state == "done"):
            try:
                return EffectAnswer(*await self._one("effect", params))
            except psycopg.Error as error:
                if error.sqlstate != "PF412" or await self._beat(hold) != "ok":
                    raise
            return EffectAnswer(*await self._one("effect", params))

    async def settle(self, hold: Hold, settlement: Settlement) -> str:
        """End the run and return the row's status. Late when the row is another's."""
        with late_is_told():
            _, status, _ = await self._one("settle", settle_params(hold, settlement))
        return str(status)

    async def settle_within(self, conn: Connection, hold: Hold, settlement: Settlement) -> None:
        """End the run in the transaction that is open on `conn`. Late takes that transaction with it."""
        with late_is_told(claimed=True):
            await conn.execute(self._queries["settle"], settle_params(hold, settlement))

    async def report_late(self, hold: Hold, settlement: Settlement) -> None:
        """Leave the claim of a run that came too late."""
        await self._one("report_late", late_params(hold, settlement, self._caller))

    async def _beat(self, hold: Hold) -> str:
        _, _, verdict = await self._one("beat_all", beat_params([hold], self._caller.lease_s))
        return str(verdict)

    async def _one(self, name: str, params: Mapping[str, Any]) -> tuple[Any, ...]:
        async with self._pool.connection() as conn:
            return (await fetch(conn, self._queries[name], params))[0]
