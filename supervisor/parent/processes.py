"""Does what plan() decided: forks, tells, kills, reaps. Keeps each child's descriptors."""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...config.values import Settings
from ...shared.text import printable
from . import changes
from .plan import Action, Doubt, Dump, Kill, Recheck, Rest, Spawn, Stop
from .poller import Poller, Priority, Source
from .spawn import CannotFork, fork
from .spec import ChildMain, Paths, Start
from .table import Child, Fact, State
from .wire import Wire

log = logging.getLogger("pfsup.parent")

LAST_READS = 16  # turns' worth of what a child said before it ended; more than its socket can hold


@dataclass(slots=True)
class Process:
    """One running generation of a child."""

    child: Child
    pid: int
    pidfd: int
    wire: Wire
    sources: list[Source] = field(default_factory=list[Source])


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What every child gets at its start."""

    settings: Settings
    boot_id: str
    paths: Paths
    child_main: ChildMain


class Processes:
    """The processes of the children in `state`. `now` is the time at which this turn judges, set by the loop."""

    def __init__(self, state: State, poller: Poller, birth: Birth, *, wake: Callable[[str], None]) -> None:
        self.now = time.monotonic()
        self.noise = 0  # bad lines and unknown peers, of children that are gone too
        self.reaped = 0
        self.strangers = 0
        self._state = state
        self._poller = poller
        self._birth = birth
        self._wake = wake
        self._running: dict[str, Process] = {}

    def act(self, action: Action) -> None:
        """Do one act."""
        child = self._state.children[action.name]
        match action:
            case Spawn():
                self._spawn(child)
            case Stop(deadline=deadline):
                self._stop(child, deadline)
            case Dump():
                self._dump(child)
            case Kill(why=why):
                self._kill(child, why)
            case Doubt():
                log.error("%s (pid %d) outlives a KILL: it hangs in the kernel", child.name, child.pid)
                changes.step(child, Fact.SURVIVED_KILL, self.now, time.time())
            case Recheck():
                self._recheck(child)
            case Rest():
                changes.step(child, Fact.RESTED, self.now, time.time())

    def tell(self, name: str, kind: str, **fields: Any) -> bool:
        """Put a message of this kind into the child's outbox. Returns False if it does not run."""
        process = self._running.get(name)
        if process is None:
            return False
        process.wire.outbox.put(kind, {"type": kind, **fields})
        self._flush(process)
        return True

    def tell_all(self, kind: str) -> None:
        """Tell every running child."""
        for name in list(self._running):
            self.tell(name, kind)

    def flush(self) -> None:
        """Write what is waiting to every child."""
        for process in self._running.values():
            self._flush(process)

    def read_all(self) -> None:
        """Read every child's messages before any deadline is judged."""
        for process in list(self._running.values()):
            self._read(process)

    def reap_strangers(self) -> None:
        """As PID 1: take the status of orphans that the kernel gave us, quietly, and act on nothing.

        One of ours at the head of the queue is left to its pidfd; those behind it are taken in the next turn.
        """
        ours = {process.pid for process in self._running.values()}
        while (result := _anyone_ended()) is not None and result.si_pid not in ours:
            os.waitpid(result.si_pid, 0)
            self.strangers += 1

    def _spawn(self, child: Child) -> None:
        wall = time.time()
        child.generation += 1
        try:
            process = self._fork(child)
        except (CannotFork, OSError) as error:
            child.generation -= 1
            log.warning("cannot start %s: %s", child.name, error)
            changes.spawn_failed(child, str(error), self.now, wall)
            return
        self._running[child.name] = process
        changes.spawned(child, self._state, process.pid, self.now, wall)
        log.info("%s started, pid %d, generation %d", child.name, process.pid, child.generation)

    def _fork(self, child: Child) -> Process:
        ours, theirs = socket.socketpair()
        start = Start(
            spec=child.spec,
            settings=self._birth.settings,
            boot_id=self._birth.boot_id,
            generation=child.generation,
            link=theirs,
            lock=self._birth.paths.child_lock(child.name),
        )
        self._poller.registry.own(ours.fileno(), f"link of {child.name}", close=ours.close)
        self._poller.registry.own(theirs.fileno(), f"link in {child.name}", close=theirs.close)
        try:
            born = fork(start, ours, registry=self._poller.registry, child_main=self._birth.child_main)
        except BaseException:
            self._poller.registry.release(ours.fileno())
            ours.close()
            raise
        finally:
            self._poller.registry.release(theirs.fileno())
            theirs.close()
        return self._watch(child, born.pid, born.pidfd, ours)

    def _watch(self, child: Child, pid: int, pidfd: int, ours: socket.socket) -> Process:
        process = Process(child, pid, pidfd, Wire(ours))
        read, end = functools.partial(self._read, process), functools.partial(self._reap, process)
        close_pidfd = functools.partial(os.close, pidfd)
        process.sources = [
            self._poller.add(ours.fileno(), f"link of {child.name}", Priority.CHILD, read, ours.close),
            self._poller.add(pidfd, f"pidfd of {child.name}", Priority.EXIT, end, close_pidfd),
        ]
        return process

    def _stop(self, child: Child, deadline: float) -> None:
        process = self._running[child.name]
        first = child.clocks.stop == float("inf")
        changes.told_to_stop(child, deadline, self.now, time.time())
        self.tell(child.name, "drain", deadline_s=round(max(0.0, deadline - time.monotonic()), 3))
        if first:  # exactly one TERM a stop: a second would mean "now" to what runs in the child
            log.info("%s (pid %d) is told to drain within %.1f s", child.name, child.pid, deadline - self.now)
            _signal(process, signal.SIGTERM)

    def _dump(self, child: Child) -> None:
        child.clocks.dumped = self.now
        self.tell(child.name, "dump")
        _signal(self._running[child.name], signal.SIGUSR1)

    def _kill(self, child: Child, why: str) -> None:
        log.error("%s (pid %d) is killed: %s", child.name, child.pid, why)
        process = self._running[child.name]
        changes.kill_sent(child, why, self.now, time.time())
        _kill_group(process.pid)
        _signal(process, signal.SIGKILL)  # also if it has left its group

    def _read(self, process: Process) -> None:
        wire = process.wire
        bad_before = wire.bad
        for message in wire.read():
            self._hear(process.child, message)
        self.noise += wire.bad - bad_before
        if wire.ended:
            self._poller.mute(process.sources[0])
        else:
            self._flush(process)

    def _hear(self, child: Child, message: dict[str, Any]) -> None:
        before = child.actual
        changes.heard(child, message, self.now, time.time())
        if message.get("type") == "wake":
            self._wake(str(message.get("name")))
        if child.actual is not before:
            reason = f": {child.said.waiting}" if child.said.waiting else ""
            log.info("%s is %s%s", child.name, child.actual.value, reason)

    def _flush(self, process: Process) -> None:
        process.wire.flush()
        self._poller.write_too(process.sources[0], not process.wire.outbox.is_empty)

    def _reap(self, process: Process) -> None:
        """Read its last words, end its group while its pid is still its own, take its status."""
        child = process.child
        for _ in range(LAST_READS):
            self._read(process)
            if process.wire.ended:
                break
        if os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        _kill_group(process.pid)
        result = os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED)
        assert result is not None
        self._forget(process)
        by_signal = result.si_code != os.CLD_EXITED
        code, signum = (None, result.si_status) if by_signal else (result.si_status, None)
        changes.exited(child, self._state, code=code, signum=signum, now=self.now, wall=time.time())
        self._tell_of_exit(child, process.pid)
        self._recheck(child, pgid=process.pid)

    def _forget(self, process: Process) -> None:
        for source in process.sources:
            self._poller.remove(source)
        process.wire.sock.close()
        os.close(process.pidfd)
        self._running.pop(process.child.name)
        self.reaped += 1

    def _tell_of_exit(self, child: Child, pid: int) -> None:
        assert child.last_exit is not None
        planned = child.clocks.stop < float("inf") and not child.forced
        text = printable(child.last_exit.text)
        log.log(logging.INFO if planned else logging.WARNING, "%s (pid %d) ended: %s", child.name, pid, text)

    def _recheck(self, child: Child, pgid: int | None = None) -> None:
        child.pgid = pgid if pgid is not None else child.pgid
        if _group_is_empty(child.pgid):
            changes.group_gone(child, self._state, self.now, time.time())
        else:
            changes.still_there(child, self.now)


def _anyone_ended() -> os.waitid_result | None:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None  # there is nobody to wait for


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(process.pidfd, number)
    except ProcessLookupError:
        pass  # it ended a moment ago; its pidfd says so next turn


def _kill_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody left, or only what has changed its user


def _group_is_empty(pgid: int) -> bool:
    """True if nobody alive is in the group. A zombie that its new parent has not reaped counts as gone."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return not any(_is_alive_in(pgid, pid) for pid in os.listdir("/proc") if pid.isdigit())  # noqa: PTH208 - names only


def _is_alive_in(pgid: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - hundreds of files; paths cost more than the read
            state, _parent, group = file.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(group) == pgid and state not in (b"Z", b"X")
