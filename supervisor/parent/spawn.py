"""Fork one child: what the parent does around it, and what the child does before its work. The order is the point.

Everything after the fork in the child runs inside try/finally os._exit: an exception that escaped would run the
parent's own except and finally blocks in the child (seen: it deleted the pid file).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ...config.errors import EXIT_INTERNAL, PfsupError
from .notify import CHILDREN_NEVER_SEE
from .registry import Registry, kernel_tasks
from .signals import BLOCKED
from .spec import ChildMain, Start

log = logging.getLogger("pfsup.parent")

PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 70

_libc = ctypes.CDLL(None, use_errno=True)


class CannotFork(PfsupError):
    """The system, or our own rule, refuses a new process now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """A new child: `pidfd` is readable exactly when it ended."""

    pid: int
    pidfd: int


def fork(start: Start, parent_end: socket.socket, *, registry: Registry, child_main: ChildMain) -> Spawned:
    """Fork the child. Raises CannotFork when there is more than one thread, or no process or descriptor to be had.

    Signals are blocked from before the fork until the child has its own handlers: 198 of 200 SIGTERMs in that window
    were lost otherwise.
    """
    registry.check()
    if kernel_tasks() != 1:
        raise CannotFork(f"the supervisor has {kernel_tasks()} threads, and a fork would copy their locks")
    _flush()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        pid = os.fork()
        if pid == 0:
            _child(start, parent_end, registry=registry, child_main=child_main, parent=parent, mask=mask)
        _own_group(pid)
        return Spawned(pid=pid, pidfd=_pidfd(pid))
    except OSError as error:
        raise CannotFork(error.strerror or type(error).__name__) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # nobody could watch it; it is still ours to reap, so the pid is still its own
        os.waitpid(pid, 0)
        raise


def _own_group(pid: int) -> None:
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # the child did it itself, or is gone already


def _child(
    start: Start,
    parent_end: socket.socket,
    *,
    registry: Registry,
    child_main: ChildMain,
    parent: int,
    mask: Iterable[int],
) -> NoReturn:
    code = EXIT_INTERNAL
    try:
        _die_with(parent)
        os.setpgid(0, 0)
        parent_end.close()
        registry.close_in_child(keep=start.link.fileno())
        _own_signals(start)
        _own_environment(start.spec.name)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.enable()
        code = child_main(start)
    except BaseException:
        log.exception("child %s ended by an exception outside its work", start.spec.name)
    finally:
        _leave(code)


def _die_with(parent: int) -> None:
    """Be KILLed when the parent ends: only KILL ends a child stuck in C code."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above, which then does nothing
        os._exit(EXIT_ORPHANED)


def _own_signals(start: Start) -> None:
    def note(number: int, _frame: FrameType | None) -> None:
        start.early.append(number)

    signal.set_wakeup_fd(-1)  # inherited: a SIGTERM to the child wrote into the parent's pipe (seen)
    signal.signal(signal.SIGTERM, note)
    # USR1 asks for a dump of stacks; a child that cannot write one must not die of the question.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTTOU, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def _own_environment(name: str) -> None:
    for key in CHILDREN_NEVER_SEE:
        os.environ.pop(key, None)
    os.environ["UV_THREADPOOL_SIZE"] = "1"
    null = os.open(os.devnull, os.O_RDONLY)  # a background group that reads the terminal is stopped
    os.dup2(null, 0)
    os.close(null)
    Path("/proc/self/comm").write_text(f"pfsup:{name}"[:15])
    random.seed()


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    _flush()
    os._exit(code)


def _flush() -> None:
    """Text that is buffered at a fork would be written twice."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # a full disk or a closed stream; nothing can be said about it here
