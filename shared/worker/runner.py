"""One message from hand to end: begin, run the function, settle."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from ...config.errors import PfsupError
from ..backoff import Backoff
from ..db.ready import drained_within, is_away, remedy
from ..drain import Drain
from ..log import Repeats
from ..points import NO_POINTS, Points
from ..text import printable
from .beats import Beats
from .calls import Begun, Calls
from .ender import pause
from .hold import Hold
from .message import Message
from .outcomes import Late, Settlement, settlement_of
from .port import PoolPort
from .task import Task, task_of
from .threads import in_thread
from .verdicts import Fate, fate_of

log = logging.getLogger("pfsup.worker")

_BUSY_TRIES = 24  # with back-off up to 1 s: about 15 s, longer than any lock of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """A registered function. `is_plain`: it runs in a thread."""

    name: str
    function: Callable[[Task], Any]
    is_plain: bool


class Runner:
    """Carries messages to their end. Whatever goes wrong, a message that was begun is settled or its lease ends."""

    def __init__(
        self,
        actors: Mapping[str, Actor],
        *,
        calls: Calls,
        beats: Beats,
        port: Callable[[Hold], PoolPort],
        drain: Drain,
        points: Points = NO_POINTS,
    ) -> None:
        self._actors = actors
        self._calls = calls
        self._beats = beats
        self._port = port
        self._drain = drain
        self._points = points
        self._holds: set[Hold] = set()
        self._said: set[str] = set()
        self._database = Repeats(log)

    def __repr__(self) -> str:
        return f"<Runner running={len(self._holds)}>"

    def knows(self, message: Message) -> bool:
        """True if this worker has the actor; says once for each actor that it has not."""
        if message.actor in self._actors:
            return True
        self._once(
            f"no function for actor {printable(message.actor, limit=128)} here: its messages are left for others"
        )
        return False

    def hurry(self) -> None:
        """The time to finish is over: ask every run to stop now."""
        for hold in list(self._holds):
            hold.lose("drain")

    async def carry(self, message: Message) -> Fate:
        """Take `message` to its end and say what is to be done with it: END or LEAVE."""
        if not self.knows(message):
            return Fate.LEAVE
        await self._points.reach("read", dispatch_id=message.dispatch_id)
        begun = await self._begin(message)
        fate = fate_of(begun.verdict) if begun else Fate.LEAVE
        if begun is None or fate is not Fate.RUN:
            if begun and fate is Fate.LEAVE:
                self._once(f"{begun.verdict}: messages of {printable(str(message.source))} are left in the stream")
            return fate
        hold = Hold(message.dispatch_id, begun.token)
        if self._drain.requested:
            await self._settle(hold, Settlement(outcome="snooze", retry_in_s=0.0))
            return Fate.END
        settlement = await self._perform(self._actors[message.actor], begun, hold)
        if settlement is not None:
            await self._settle(hold, settlement)
        if hold.settled:
            await self._points.reach("settled", dispatch_id=hold.id)
        return Fate.END

    async def _begin(self, message: Message) -> Begun | None:
        """begin_work()'s answer; None when it could not be had and the message stays in the stream."""
        # A message that overtakes its mark finds the row locked until the mark's commit: a millisecond, not 50.
        busy, away = Backoff(0.001, 1.0), Backoff(0.1, 5.0)
        while True:
            try:
                begun = await self._calls.begin(message)
            except Exception as error:
                if not _is_away(error):
                    self._once(f"cannot begin work of actor {message.actor}: {_refusal(error)}")
                    return None
                self._database.say(f"cannot begin: {remedy(error)}")
                wait_s = away.next_s()
            else:
                self._database.over("work begins again")
                if fate_of(begun.verdict) is not Fate.AGAIN:
                    return begun
                if busy.failures >= _BUSY_TRIES:
                    return None
                wait_s = busy.next_s()
            if self._drain.requested or await drained_within(self._drain, wait_s):
                return None

    async def _perform(self, actor: Actor, begun: Begun, hold: Hold) -> Settlement | None:
        """Run the function under a beating lease; what to settle, or None when there is nothing to settle any more."""
        self._holds.add(hold)
        self._beats.hold(hold)
        try:
            await self._points.reach("begun", dispatch_id=hold.id)
            error = await self._call(actor, task_of(actor.name, begun, hold, self._port(hold)), hold)
        finally:
            self._beats.release(hold)
            self._holds.discard(hold)
        return after_run(hold, error)

    async def _call(self, actor: Actor, task: Task, hold: Hold) -> BaseException | None:
        """What the function raised; None when it returned."""
        work: asyncio.Future[Any]
        if actor.is_plain:
            work = in_thread(lambda: run_plain(actor, task), name=f"pfsup-{actor.name}")
        else:
            loop = asyncio.get_running_loop()
            work = asyncio.ensure_future(actor.function(task))
            hold.when_lost(lambda: loop.call_soon_threadsafe(work.cancel))
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            work.cancel()
            raise
        if work.cancelled():
            return asyncio.CancelledError()
        return work.exception()

    async def _settle(self, hold: Hold, settlement: Settlement) -> None:
        """Settle, again while the database is away. At worst the lease ends and recovery judges."""
        backoff = Backoff(0.1, 5.0)
        while not await self._try_settle(hold, settlement):
            if self._drain.left_s() <= 0:
                log.warning("dispatch %d is left to recovery: the database was away until the end", hold.id)
                return
            await pause(min(backoff.next_s(), self._drain.left_s()))

    async def _try_settle(self, hold: Hold, settlement: Settlement) -> bool:
        """True when nothing is left to do."""
        try:
            await self._calls.settle(hold, settlement)
            hold.settled = True
        except Late as error:
            await self._tell_late(hold, settlement, error)
        except Exception as error:
            if not _is_away(error):
                log.error("cannot settle dispatch %d as %s: %s", hold.id, settlement.outcome, _refusal(error))
                return True
            self._database.say(f"cannot settle: {remedy(error)}")
            return False
        return True

    async def _tell_late(self, hold: Hold, settlement: Settlement, late: Late) -> None:
        """Leave the claim for a person, in a transaction of its own: the one that was refused is lost."""
        log.warning("%s", late)
        if not settlement.is_claim:
            return
        try:
            await self._calls.report_late(hold, settlement)
        except Exception as error:
            log.warning("cannot write down that dispatch %d came late: %s", hold.id, remedy(error))

    def _once(self, text: str) -> None:
        if text not in self._said and len(self._said) < 1000:
            self._said.add(text)
            log.warning("%s", text)


def run_plain(actor: Actor, task: Task) -> None:
    """Run a plain function to its end. What it returns may still have to be run: that is not done."""
    result = actor.function(task)
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns, where nobody reads it
        raise PfsupError(
            f"cannot run actor {actor.name}: its function returned a {type(result).__name__}, which never ran;"
            " register an async function, or a plain one that works until it returns"
        )


def after_run(hold: Hold, error: BaseException | None) -> Settlement | None:
    """What to settle after the function has ended; None: nothing (it is settled, another's, or left to recovery)."""
    if hold.settled:
        return None
    if isinstance(error, Late) and error.claimed:
        # Refused within the function's own transaction, result and all. Claimed once more, it is refused once more, and
        # then written down for a person.
        return Settlement(outcome="consumed")
    if not isinstance(error, asyncio.CancelledError):
        return settlement_of(error)
    return _after_stop(hold)


def _after_stop(hold: Hold) -> Settlement | None:
    """What to settle for a function that was cancelled."""
    match hold.lost:
        case "late" | "cancel":
            return None
        case "drain":
            # Nobody can prove an open effect: the lease ends, recovery makes it unknown.
            return None if hold.open_effects else Settlement(outcome="snooze", retry_in_s=0.0)
        case "deadline":
            return Settlement(outcome="retry", error="cancelled: it ran longer than the actor's max_run")
        case None:
            return Settlement(outcome="retry", error="CancelledError: the function was cancelled from within")


def _is_away(error: BaseException) -> bool:
    return is_away(error) or isinstance(error, psycopg.InterfaceError)


def _refusal(error: BaseException) -> str:
    """The database's refusal in its own first line: ours hold no payload."""
    if isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("PF"):
        return printable(f"{error.diag.message_primary} {error.diag.message_hint or ''}", limit=400)
    return remedy(error)
