"""The parent: one thread, one epoll, no database, no event loop. Forks children, watches them, ends them.

Each turn: wait until the next deadline that can still change something, take signals, read exits and messages, let
signals and commands edit what is wanted, plan, act, write.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...config.errors import EXIT_FORCED, EXIT_INTERNAL, EXIT_OK
from ...config.values import Settings
from ...shared.backoff import Backoff
from . import changes, lock
from .control import Control
from .notify import Notify
from .plan import Dump, Kill, finished, next_due, plan
from .poller import Poller, Priority
from .processes import Birth, Processes
from .registry import Registry
from .signals import Signals, has_terminal, lost_terminal
from .spec import ChildMain, Limits, LogOutput, Paths, Spec
from .status import is_live
from .table import Child, State
from .verbs import Verbs

log = logging.getLogger("pfsup.parent")

LONGEST_WAIT_S = 30.0
PATH_CHECK_S = 60.0
LATE_S = 0.25
BACKOFF_BASE_S = 0.5
BACKOFF_CAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a supervisor is made of."""

    settings: Settings
    specs: Sequence[Spec]
    paths: Paths
    child_main: ChildMain
    version: str = ""
    log: LogOutput


@dataclass(slots=True)
class Turns:
    """How the loop does: turns, those that began late, the longest one's work, wait excluded."""

    count: int = 0
    late: int = 0
    overslept: int = 0
    longest_s: float = 0.0


@dataclass(slots=True)
class Marks:
    """Monotonic times at which the loop's own small duties are due."""

    path_check: float = float("inf")
    watchdog: float = float("inf")
    asked_until: float = float("inf")
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)


class Parent:
    """One supervisor. `run` returns its exit code: 0, 4 when something had to be killed, 70 after a fault of ours."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._boot_id = str(uuid.uuid4())
        self._had_terminal = has_terminal()
        self._is_init = os.getpid() == 1
        self._registry = Registry.begin(log_fd=setup.log.fileno())
        self._poller = Poller(self._registry)
        self._signals = Signals()
        self._notify = Notify(os.environ)
        self._turns, self._marks = Turns(), Marks()
        self._state = State(children=_children(setup.specs), limits=_limits(setup.settings))
        birth = Birth(settings=setup.settings, boot_id=self._boot_id, paths=setup.paths, child_main=setup.child_main)
        self._processes = Processes(self._state, self._poller, birth, wake=self._wake_peer)
        self._verbs = Verbs(self._state, self._processes, figures=self._figures, stop=self._ask_to_stop)
        self._control = Control(setup.paths.control, self._poller, self._verbs.answer)

    def run(self) -> int:
        """Hold the lock, run until a stop is over. Raises AlreadyRunning or ConfigError before anything is forked."""
        with self._signals:
            self._open()
            try:
                while not finished(self._state, self._processes.now):
                    self._turn()
            except BaseException:
                log.exception("the supervisor ends by a fault of its own, and its children with it")
                return self._close(code=EXIT_INTERNAL)
            return self._close(code=EXIT_FORCED if self._forced() else EXIT_OK)

    def _open(self) -> None:
        lock_fd = lock.acquire(self._setup.paths.lock)
        self._registry.own(lock_fd, "lock", close=lambda: os.close(lock_fd))
        reader, writer = self._signals.fds
        self._registry.own(writer, "signal pipe, written", close=lambda: os.close(writer))
        self._poller.add(reader, "signal pipe, read", Priority.SIGNAL, lambda: None, lambda: os.close(reader))
        lock.write_pid(self._setup.paths.pid)
        self._control.open()
        now = time.monotonic()
        self._processes.now = now
        self._marks.path_check = now + PATH_CHECK_S
        self._marks.watchdog = now + self._notify.watchdog_s
        log.info("supervisor %s started, pid %d", self._setup.settings.supervisor.name, os.getpid())
        self._notify.send(f"READY=1\nMAINPID={os.getpid()}")

    def _turn(self) -> None:
        ready = self._poller.wait(self._wait_s())
        now = self._begin_turn()
        self._control.tick(now)
        for source in ready:
            if source.is_open:
                source.act()
        self._take_signals(self._signals.take())
        self._act(now)
        self._processes.flush()
        if self._is_init:
            self._processes.reap_strangers()
        self._duties(now)
        self._turns.longest_s = max(self._turns.longest_s, time.monotonic() - now)

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = min(next_due(self._state, now), self._control.next_due(), self._marks.path_check, self._marks.watchdog)
        wait_s = min(LONGEST_WAIT_S, max(0.0, due - now))
        self._marks.asked_until = now + wait_s
        return wait_s

    def _begin_turn(self) -> float:
        """Date the turn. A parent that was stopped or swapped out judges nobody by what it could not hear."""
        now = self._processes.now = time.monotonic()
        late_s = now - self._marks.asked_until
        self._turns.count += 1
        self._turns.late += late_s > LATE_S
        if late_s > self._state.limits.beat_s:
            self._turns.overslept += 1
            log.warning("the supervisor overslept by %.1f s; every child gets a full beat timeout", late_s)
            changes.grant_a_period(self._state, now)
        return now

    def _act(self, now: float) -> None:
        acts = plan(self._state, now)
        if any(isinstance(act, Dump | Kill) for act in acts):
            self._processes.read_all()  # a beat that lies in a socket may clear the suspect
            acts = plan(self._state, now)
        for act in acts:
            self._processes.act(act)

    def _take_signals(self, taken: Counter[int]) -> None:
        for _ in range(taken[signal.SIGTERM] + taken[signal.SIGINT]):
            self._ask_to_stop()
        if taken[signal.SIGHUP]:
            if lost_terminal(had_one=self._had_terminal):
                self._ask_to_stop()
            else:
                log.warning("reload is not available in this version; restart the supervisor to apply a new file")
        if taken[signal.SIGUSR1]:
            self._reopen()

    def _ask_to_stop(self) -> None:
        if self._state.shutdown is None:
            self._notify.send("STOPPING=1")
        changes.stop_asked(self._state, self._processes.now)
        assert self._state.shutdown is not None
        left_s = self._state.shutdown.total - self._processes.now
        what = ("stopping", "hastened", "killing what is left")[self._state.shutdown.level - 1]
        log.info("%s; at most %.1f s are left", what, max(0.0, left_s))

    def _reopen(self) -> None:
        self._registry.release(self._setup.log.fileno())
        self._setup.log.reopen()
        self._registry.own(self._setup.log.fileno(), "log", close=None)
        self._processes.tell_all("reopen")
        self._control.reopen()

    def _duties(self, now: float) -> None:
        if now >= self._marks.path_check:
            self._marks.path_check = now + PATH_CHECK_S
            self._control.check_path()
        if now >= self._marks.watchdog:
            self._marks.watchdog = now + self._notify.watchdog_s
            if is_live(self._state):  # else systemd shall act: a child hangs beyond our reach
                self._notify.send("WATCHDOG=1")

    def _wake_peer(self, name: str) -> None:
        if not self._verbs.wake(name):
            log.debug("a wake for %r was not passed on: it does not run", name)

    def _forced(self) -> list[str]:
        return [child.name for child in self._state.children.values() if child.forced]

    def _close(self, *, code: int) -> int:
        forced = self._forced()
        log.info("stopped%s", f"; had to be killed: {', '.join(forced)}" if forced else "")
        self._control.say_goodbye({"ok": True, "stopped": True, "forced": forced, "code": code})
        self._control.close()
        self._setup.paths.pid.unlink(missing_ok=True)
        self._registry.check()
        return code

    def _figures(self) -> dict[str, Any]:
        counts = self._control.counts
        self._registry.check()
        return {
            "name": self._setup.settings.supervisor.name,
            "pid": os.getpid(),
            "version": self._setup.version,
            "boot_id": self._boot_id,
            "started_at": self._marks.started_at,
            "uptime_s": round(time.monotonic() - self._marks.started, 3),
            "turns": self._turns.count,
            "late_turns": self._turns.late,
            "overslept": self._turns.overslept,
            "longest_turn_s": round(self._turns.longest_s, 6),
            "reaped": self._processes.reaped,
            "strangers": self._processes.strangers,
            "fds": self._registry.fds,
            "strange_fds": self._registry.strange_fds,
            "strange_tasks": self._registry.strange_tasks,
            "log_errors": self._setup.log.errors,
            "clients": self._control.clients,
            "clients_refused": counts.refused,
            "clients_evicted": counts.evicted,
            "bad_lines": counts.bad_lines + self._processes.noise,
        }


def _children(specs: Sequence[Spec]) -> dict[str, Child]:
    rng = random.Random()  # noqa: S311 - spreads restarts; made in this process and used only here
    return {spec.name: Child(spec=spec, backoff=Backoff(BACKOFF_BASE_S, BACKOFF_CAP_S, rng=rng)) for spec in specs}


def _limits(settings: Settings) -> Limits:
    supervisor = settings.supervisor
    return Limits(boot_s=supervisor.boot_timeout, beat_s=supervisor.beat_timeout, stop_s=supervisor.stop_timeout)
