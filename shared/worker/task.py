"""The task that a worker's function is given."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol
from uuid import UUID

import psycopg

from .calls import Begun
from .effects import EffectPort, EffectScope
from .hold import Hold, Loss


class RunPort(EffectPort, Protocol):
    """What a task needs of the form of worker that runs it."""

    def transaction(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]: ...

    def transaction_now(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...


class TaskEffect(str):
    """What earlier runs left (`none`, `begun`, `done`), and by a call the way to a new effect.

    Both are called `effect` in the contract: `task.effect == "done"`, `async with task.effect("charge") as charge`.
    """

    _port: EffectPort

    def __new__(cls, state: str, port: EffectPort) -> TaskEffect:
        made = super().__new__(cls, state)
        made._port = port
        return made

    def __call__(self, name: str = "main", ref: str | None = None) -> EffectScope:
        """Put `async with` (or `with`, in a plain function) around an outside call; see EffectScope.

        `ref`: what is known before the call, such as the idempotency key; kept until the call's own answer replaces it.
        """
        return EffectScope(self._port, name, ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run. `id` is the same in every run and delivery of it: give it to providers as the idempotency key.

    `attempt` counts from 1: the runs that failed before, plus this one; `deliveries` the messages; `recoveries` how
    often the row was taken back from a worker that was lost. `effect` is what earlier runs left, and callable;
    `effect_ref` what the main effect stored. `token`: a transaction of your own can end the run with
    `SELECT pfsup.settle(id, token, 'consumed')`; returning afterwards is fine.
    """

    id: int
    actor: str
    aggregate_id: str
    payload: Any = field(repr=False)
    headers: dict[str, Any] = field(repr=False)
    tenant: str | None
    attempt: int
    max_attempts: int
    deliveries: int
    recoveries: int
    effect: TaskEffect
    effect_ref: str | None
    deadline_at: datetime
    token: UUID = field(repr=False)
    _hold: Hold = field(repr=False)
    _port: RunPort = field(repr=False)

    @property
    def lost(self) -> Loss | None:
        """Why this run should stop, or None. An async function is cancelled then; a plain one may look here."""
        return self._hold.lost

    def transaction(self) -> TransactionScope:
        """A transaction whose commit ends the run as consumed: the business result and the settlement are one.

        `async with task.transaction() as conn` (`with` in a plain function) gives a psycopg connection with
        search_path "$user", public and the worker's timeouts. An exception rolls back and settles nothing; Late is
        raised on leaving, and rolls back, when the row is another's.
        """
        return TransactionScope(self._port)


class TransactionScope:
    """See Task.transaction()."""

    __slots__ = ("_now", "_port", "_soon")

    def __init__(self, port: RunPort) -> None:
        self._port = port
        self._soon: AbstractAsyncContextManager[psycopg.AsyncConnection[Any]] | None = None
        self._now: AbstractContextManager[psycopg.Connection[Any]] | None = None

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        self._soon = self._port.transaction()
        return await self._soon.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._soon is not None:
            await self._soon.__aexit__(kind, error, trace)

    def __enter__(self) -> psycopg.Connection[Any]:
        self._now = self._port.transaction_now()
        return self._now.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._now is not None:
            self._now.__exit__(kind, error, trace)


def task_of(actor: str, begun: Begun, hold: Hold, port: RunPort) -> Task:
    """The task for a run that begin_work() let in."""
    return Task(
        id=hold.id,
        actor=actor,
        aggregate_id=begun.aggregate_id,
        payload=begun.payload,
        headers=begun.headers,
        tenant=begun.tenant,
        attempt=begun.attempt,
        max_attempts=begun.max_attempts,
        deliveries=begun.deliveries,
        recoveries=begun.recoveries,
        effect=TaskEffect(begun.effect, port),
        effect_ref=begun.effect_ref,
        deadline_at=begun.deadline_at,
        token=hold.token,
        _hold=hold,
        _port=port,
    )
