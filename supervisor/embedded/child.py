"""One server process: it ends cleanly with its owner, is watched by a pidfd, and ended by a ladder of signals."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ...config.errors import PfsupError
from .account import Account, Way, enter_namespace, environment

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAIL_LINES = 15
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class ServerFailed(PfsupError):
    """A server did not start or ended by itself. The text ends with the last lines of its log."""


class Child:
    """A running server. If the owner dies in any way, SIGKILL included, the kernel sends the server `stop_signal`.

    The thread that starts the server must live as long as it (prctl(2), PR_SET_PDEATHSIG): start it from the main one.
    """

    __slots__ = ("_popen", "log", "name", "pidfd", "stop_signal")

    def __init__(
        self,
        argv: list[str],
        *,
        name: str,
        account: Account,
        cwd: Path,
        log: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        lock_fd: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.stop_signal = stop_signal
        # 0600: a log can quote statements, and statements can hold payloads.
        with open(os.open(log, _LOG_FLAGS, 0o600), "ab") as log_file:  # noqa: PTH123 - a descriptor, not a path
            steps = _last_steps(account, stop_signal, os.getpid())
            self._popen = _spawn(argv, account=account, cwd=cwd, log_file=log_file, steps=steps, lock_fd=lock_fd)
        self.pidfd = os.pidfd_open(self._popen.pid)

    def __repr__(self) -> str:
        return f"<Child {self.name} pid={self.pid} {'alive' if self.is_alive() else 'ended'}>"

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._popen.pid

    def is_alive(self) -> bool:
        """True while the process runs (a zombie does not)."""
        return self._popen.returncode is None and not _readable(self.pidfd, 0.0)

    def wait_ready(self, is_ready: Callable[[], bool], *, within_s: float) -> None:
        """Ask `is_ready` until it says yes. Raises ServerFailed when the server ends or the time is over."""
        until = time.monotonic() + within_s
        while not is_ready():
            # The event waited for is the server's end; 5 ms without it is the time to ask again.
            if _readable(self.pidfd, 0.005):
                raise ServerFailed(f"cannot start {self.name}: it ended with {self._ending()}\n{tail(self.log)}")
            if time.monotonic() > until:
                raise ServerFailed(f"cannot start {self.name}: not ready after {within_s:g} s\n{tail(self.log)}")

    def wait_success(self, *, within_s: float) -> None:
        """Wait for a program that ends by itself. Raises ServerFailed unless it ended with 0 in time."""
        if not _readable(self.pidfd, within_s):
            self._popen.kill()
            raise ServerFailed(f"cannot run {self.name}: still running after {within_s:g} s\n{tail(self.log)}")
        if self._popen.wait() != 0:
            raise ServerFailed(f"cannot run {self.name}: it ended with {self._ending()}\n{tail(self.log)}")

    def send(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.is_alive():
            self._popen.send_signal(number)

    def stop(self, *, harder: signal.Signals, within_s: float = 30.0) -> bool:
        """End the server: `stop_signal`, after `within_s` `harder`. True if the first was enough."""
        self.send(signal.SIGCONT)  # a stopped process would not see the next signal
        self.send(self.stop_signal)
        gently = _readable(self.pidfd, within_s)
        if not gently:
            self.send(harder)
        self._popen.wait()
        return gently

    def close(self) -> None:
        """Give the pidfd back; call it after the process ended."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def obituary(self) -> str:
        """One sentence about the end of the process, with the last lines of its log."""
        return f"{self.name} (process {self.pid}) ended with {self._ending()}\n{tail(self.log)}"

    def _ending(self) -> str:
        code = self._popen.wait()
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a server's log, printable and indented; says so when there are none."""
    try:
        text = log.read_bytes()[-8192:].decode("utf-8", "replace")
    except OSError as error:
        return f"  (no log: {error.strerror})"
    shown = ["".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines()[-lines:]]
    return "\n".join(f"  {line}" for line in shown) or "  (its log is empty)"


def _readable(fd: int, wait_s: float) -> bool:
    poller = select.poll()  # select.select refuses descriptors above 1023
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(wait_s * 1000))


def _spawn(
    argv: list[str],
    *,
    account: Account,
    cwd: Path,
    log_file: BinaryIO,
    steps: Callable[[], None],
    lock_fd: int | None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=log_file,
        stderr=log_file,
        env=environment(),
        umask=0o077,
        start_new_session=True,  # Ctrl-C in the terminal is the owner's to handle
        pass_fds=() if lock_fd is None else (lock_fd,),
        # Runs after the change of the uid, which would clear the death signal (prctl(2)).
        preexec_fn=steps,  # noqa: PLW1509 - the owner has one thread, and Popen has no argument for a death signal
        user=account.switch_uid,
        group=account.switch_gid,
        extra_groups=account.switch_groups,
    )


def _last_steps(account: Account, stop_signal: signal.Signals, owner_pid: int) -> Callable[[], None]:
    def steps() -> None:
        if account.way is Way.NAMESPACE:
            enter_namespace()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _libc.prctl(PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)
        if os.getppid() != owner_pid:  # the owner died before prctl: nobody would ever send the signal
            os._exit(1)

    return steps
