"""Processes of the demo (and of scripts/bench). Each ends with its owner, also when the owner is killed by SIGKILL."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ...config.errors import PfsupError

_PR_SET_PDEATHSIG = 1


def dies_with(owner: int) -> Callable[[], None]:
    """What a new process runs first: SIGKILL reaches it when `owner`, its parent, ends. Without prctl: nothing."""
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: the child must not take the loader's lock

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != owner:  # the owner ended between fork and prctl
            os._exit(1)

    return bind


class Program:
    """One process with its output in a file, as a context manager: leaving ends it, gently and then not.

    `argv` follows the interpreter that runs us. With `speaks` its standard output is a pipe that `expect()` reads.
    In a session of its own it gets no Ctrl-C from the terminal: its owner decides the order in which things end.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        speaks: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *argv],
                bufsize=0,  # expect() asks the selector: nothing may wait in a buffer of ours
                stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if speaks else output,
                stderr=output,
                env={**os.environ, **(environ or {})},
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one prctl; our programs start before any thread
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __repr__(self) -> str:
        return f"<Program {self.name} pid={self.pid} exit={self._process.returncode}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended (minus the signal's number), or None while it runs."""
        return self._process.poll()

    def expect(self, word: str, *, within_s: float) -> list[str]:
        """Read lines until one starts with `word`; return all of them. PfsupError at its end or after `within_s`."""
        lines: list[str] = []
        stream = self._stream(self._process.stdout)
        deadline = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not lines or not lines[-1].startswith(word):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PfsupError(f"cannot go on: {self.name} did not say {word!r} within {within_s:g} s")
                line = stream.readline()
                if not line:
                    raise PfsupError(f"cannot go on: {self.name} ended before it said {word!r}\n{self.tail()}")
                lines.append(line.decode(errors="replace").rstrip("\n"))
        return lines

    def heard(self) -> list[str]:
        """The lines that it has written by now and nobody has read; none is waited for."""
        lines: list[str] = []
        stream = self._stream(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while selector.select(0) and (line := stream.readline()):
                lines.append(line.decode(errors="replace").rstrip("\n"))
        return lines

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def say(self, line: str) -> None:
        """Write one line to its standard input."""
        stream = self._stream(self._process.stdin)
        stream.write(line.encode() + b"\n")
        stream.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""
        self._process.send_signal(number)

    def wait(self, within_s: float) -> int | None:
        """Wait for its end; the exit code, or None when it still runs after `within_s`."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, *, within_s: float = 10.0) -> int:
        """SIGTERM, and SIGKILL after `within_s`. Return its exit code; a second call changes nothing."""
        self.signal(signal.SIGTERM)
        code = self.wait(within_s)
        if code is None:
            self._process.kill()
            code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        return code

    def tail(self, lines: int = 8) -> str:
        """The last lines of its log, for an error's text."""
        written = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {self.name}: {line}" for line in written)

    def _stream(self, stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise PfsupError(f"cannot talk to {self.name}: it was started without pipes")
        return stream
