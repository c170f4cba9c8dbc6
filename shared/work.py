"""The sync form of a worker, for other frameworks: `with pfsup.work(conn, message) as task` (DESIGN 3.6)."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ..config.errors import PfsupError
from .backoff import Backoff
from .db.queries import Queries
from .db.ready import remedy
from .text import printable
from .worker.beats import Beats
from .worker.calls import (
    Begun,
    Caller,
    EffectAnswer,
    beat_params,
    begin_params,
    effect_params,
    late_is_told,
    late_params,
    settle_params,
    worker_queries,
)
from .worker.hold import Hold
from .worker.message import parse
from .worker.outcomes import Busy, Late, RunEnded, Settlement, settlement_of
from .worker.task import Task, task_of
from .worker.verdicts import Fate, fate_of

log = logging.getLogger("pfsup.worker")

_BUSY_TRIES = 6  # with back-off: about 1.5 s


@contextmanager
def work(
    conn: psycopg.Connection[Any],
    message: Mapping[Any, Any],
    *,
    worker: str | None = None,
    lease_s: float = 60.0,
    schema: str = "pfsup",
    sink_ref: str | None = None,
) -> Generator[Task | None]:
    """Run one message; `message` is the entry's fields. None instead of a task: do nothing, drop the message.

    `conn` must be idle. begin_work() commits at once; what the block writes through `conn` and the settlement are then
    one transaction, committed on leaving (on an autocommit connection use `with task.transaction()`). An exception
    rolls back and settles: Retry, Snooze, Reject and Unknown as they say; any other, also one that the commit raises or
    that is no Exception (a framework's time limit), is a retry and is raised again.
    Raises Busy when somebody locks the row for long (have the message delivered again) and Late when the row was lost
    meanwhile: the transaction is rolled back, and the claim is written down for a person. When `conn` broke, the run is
    left to its lease, and recovery judges it.

    A thread prolongs the lease of `lease_s` seconds over a connection of its own, made when a third of it is over.
    """
    if conn.info.transaction_status != TransactionStatus.IDLE:
        raise PfsupError("cannot begin work: the connection is inside a transaction; commit or roll back first")
    caller = Caller(worker=printable(worker or f"{socket.gethostname()}:{os.getpid()}", limit=200), lease_s=lease_s)
    runs = _Runs(conn, worker_queries(schema), caller)
    found = runs.begin(message, sink_ref)
    if found is None:
        yield None
        return
    actor, hold, begun = found
    beats = Beats(_another(conn), runs.queries["beat_all"], lease_s=lease_s)
    port = _ConnPort(hold, runs, beats)
    beats.hold(hold)
    try:
        yield task_of(actor, begun, hold, port)
        beats.release(hold)
        runs.end_done(hold)
    except BaseException as error:
        beats.release(hold)
        if not runs.end_failed(hold, error) or not isinstance(error, RunEnded):
            raise
    finally:
        beats.close()


@dataclass(frozen=True, slots=True)
class _Runs:
    """The calls over the caller's connection. Statements join the transaction that is open on it."""

    conn: psycopg.Connection[Any]
    queries: Queries
    caller: Caller

    def begin(self, message: Mapping[Any, Any], sink_ref: str | None) -> tuple[str, Hold, Begun] | None:
        """Ask to run; commits. None: there is nothing to do."""
        told = parse("", "", message)
        params = {**begin_params(told, self.caller), "sink_ref": sink_ref}
        backoff = Backoff(0.05, 1.0)
        while True:
            begun = Begun(*self.alone("begin_work", params))
            fate = fate_of(begun.verdict)
            if fate is not Fate.AGAIN:
                break
            if backoff.failures >= _BUSY_TRIES:
                raise Busy(f"cannot begin dispatch {told.dispatch_id}: its row is locked; deliver the message again")
            threading.Event().wait(backoff.next_s())
        if fate is Fate.LEAVE:
            log.warning("dispatch %d is not begun: %s", told.dispatch_id, begun.verdict)
        return (told.actor, Hold(told.dispatch_id, begun.token), begun) if fate is Fate.RUN else None

    def end_done(self, hold: Hold) -> None:
        """Settle in the transaction that the block left open, and commit it."""
        if not hold.settled:
            with late_is_told(claimed=True):
                self.one("settle", settle_params(hold, Settlement(outcome="consumed")))
        if self.is_open():
            self.conn.commit()

    def end_failed(self, hold: Hold, error: BaseException) -> bool:
        """Roll back what the block wrote and end the run as `error` says. False: it could not, the connection broke."""
        try:
            if self.is_open():
                self.conn.rollback()
            if not hold.settled:
                self._settle_failed(hold, error)
        except psycopg.Error as broken:
            log.warning("dispatch %d is left to its lease: %s", hold.id, remedy(broken))
            return False
        return True

    def _settle_failed(self, hold: Hold, error: BaseException) -> None:
        if isinstance(error, Late) and error.claimed:
            self._report_late(hold, Settlement(outcome="consumed"))
            return
        settlement = settlement_of(error)
        try:
            with late_is_told():
                self.alone("settle", settle_params(hold, settlement))
        except Late as late:
            log.warning("%s", late)
            if settlement.is_claim:
                self._report_late(hold, settlement)

    def _report_late(self, hold: Hold, settlement: Settlement) -> None:
        """Leave the claim for a person."""
        self.alone("report_late", late_params(hold, settlement, self.caller))

    def effect(self, hold: Hold, state: str, name: str, ref: str | None) -> EffectAnswer:
        """One step of an effect: in the transaction that is open, else committed at once.

        A lease that ended while nobody took the row (the database was away) is revived first; a late `done` claims.
        """
        params = effect_params(hold, state, name, ref)
        with late_is_told(claimed=state == "done"):
            if self.is_open():
                return EffectAnswer(*self.one("effect", params))
            try:
                return EffectAnswer(*self.alone("effect", params))
            except psycopg.Error as error:
                if error.sqlstate != "PF412" or self._beat(hold) != "ok":
                    raise
            return EffectAnswer(*self.alone("effect", params))

    def _beat(self, hold: Hold) -> str:
        _, _, verdict = self.alone("beat_all", beat_params([hold], self.caller.lease_s))
        return str(verdict)

    def alone(self, name: str, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """One call in a transaction of its own: nothing stays open, also when it is refused."""
        with self.conn.transaction():
            return self.one(name, params)

    def one(self, name: str, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The one row that a call answers, whatever row factory the caller's connection has."""
        with self.conn.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(self.queries[name], params).fetchone()
        if row is None:
            raise PfsupError(f"cannot {name}: the database answered no row")
        return row

    def is_open(self) -> bool:
        """True inside a transaction, also one that failed or whose connection broke."""
        return self.conn.info.transaction_status != TransactionStatus.IDLE


@dataclass(frozen=True, slots=True)
class _ConnPort:
    """The database as a run of work() sees it: the caller's connection."""

    hold: Hold
    runs: _Runs
    beats: Beats

    async def write_effect(self, state: str, name: str, ref: str | None) -> EffectAnswer:
        raise PfsupError("cannot use 'async with task.effect(...)' here: write 'with'")

    def write_effect_now(self, state: str, name: str, ref: str | None) -> EffectAnswer:
        """`begun` commits before the call; `done` and `void` join the open transaction, with the result."""
        if state == "begun" and self.runs.is_open():
            raise PfsupError(
                f"cannot begin effect {printable(name, limit=100)}: the connection is inside a transaction,"
                " so it would not be stored before the call; commit first"
            )
        return self.runs.effect(self.hold, state, name, ref)

    def transaction(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        raise PfsupError("cannot use 'async with task.transaction()' here: write 'with'")

    @contextmanager
    def transaction_now(self) -> Generator[psycopg.Connection[Any]]:
        """A transaction on the caller's connection that settles the run as its last call."""
        if self.runs.is_open():
            raise PfsupError(
                "cannot open the run's transaction: one is open on the connection; commit or roll back first"
            )
        try:
            with self.runs.conn.transaction():
                yield self.runs.conn
                self.beats.release(self.hold)
                with late_is_told(claimed=True):
                    self.runs.one("settle", settle_params(self.hold, Settlement(outcome="consumed")))
        except BaseException:
            self.beats.hold(self.hold)  # the block may try again
            raise
        self.hold.settled = True


def _another(conn: psycopg.Connection[Any]) -> Callable[[], psycopg.Connection[Any]]:
    """How to connect once more to where `conn` is connected; `dsn` holds everything but the password."""
    where, password = conn.info.dsn, conn.info.password
    return lambda: psycopg.connect(where, password=password or None, autocommit=True, application_name="pfsup:beats")
