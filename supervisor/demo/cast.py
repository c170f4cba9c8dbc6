"""The programs of the play: pfsup, the workers, the shop. They are started here and nowhere else, so that a later act
can end one of them at a chosen moment and start it again.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from ...config.errors import PfsupError
from .boundaries import Boundary
from .place import APP, SCHEMA, WORKER, Place
from .programs import Program

BOOT_S = 30.0
STOP_S = 30.0
PFSUP, SHOP, PROVIDER = "pfsup", "shop", "provider"


class Cast:
    """The programs by name, as a context manager: leaving ends whatever still runs, the last started first."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stack = ExitStack()
        self._programs: dict[str, Program] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_pfsup(self) -> None:
        """A real `pfsup start`; returns when it says that it is ready."""
        program = self._start(PFSUP, ["-m", "pfsup", "start", "-c", str(self._place.config)])
        tick, deadline = threading.Event(), time.monotonic() + BOOT_S
        while not self._ready():
            if program.exit_code is not None or time.monotonic() > deadline:
                raise PfsupError(f"cannot start the demo: pfsup is not ready within {BOOT_S:g} s\n{program.tail()}")
            tick.wait(0.05)

    def start_provider(self) -> None:
        """The provider outside; returns when it can be called."""
        argv = ["-m", "pfsup.supervisor.demo.provider", str(self._place.socket), str(self._place.calls)]
        self._start(PROVIDER, argv, speaks=True).expect("ready", within_s=BOOT_S)

    def start_worker(self, number: int) -> None:
        """A worker process; returns when it reads."""
        self._start_worker(f"worker {number}").expect("ready", within_s=BOOT_S)

    def start_doomed(self, name: str, boundary: Boundary, actor: str) -> None:
        """A worker that will stand still at the boundary (with a task of `actor`; "": any) and say so."""
        self._start_worker(name, boundary, actor)

    def heard(self, name: str) -> list[str]:
        """What the program has said since it was asked last."""
        return self._programs[name].heard()

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would."""
        self._programs.pop(name).kill()

    def start_shop(self, rate: float) -> None:
        """The shop, which commits `rate` orders a second from now on."""
        argv = [self._place.url_of(APP), str(rate), SCHEMA]
        self._start(SHOP, ["-m", "pfsup.supervisor.demo.producer", *argv])

    def check(self) -> None:
        """PfsupError with the end of its log when a program has ended that should run."""
        for program in self._programs.values():
            if program.exit_code is not None:
                raise PfsupError(
                    f"cannot go on: {program.name} ended with exit code {program.exit_code}\n{program.tail()}"
                )

    def dismiss(self, *names: str) -> list[str]:
        """SIGTERM to the named programs and wait for them; a line for each that did not end with exit code 0."""
        gone = [self._programs.pop(name) for name in names]
        return [
            f"{program.name} ended with exit code {code}\n{program.tail()}"
            for program in gone
            if (code := program.end(within_s=STOP_S)) != 0
        ]

    @property
    def workers(self) -> list[str]:
        """The names of the workers that should run."""
        return [name for name in self._programs if name.startswith("worker ")]

    def _start_worker(self, name: str, *dies: str) -> Program:
        argv = [self._place.url_of(WORKER), self._place.redis_url, SCHEMA, str(self._place.socket), *dies]
        return self._start(name, ["-m", "pfsup.supervisor.demo.worker", *argv], speaks=True)

    def _start(self, name: str, argv: list[str], *, speaks: bool = False) -> Program:
        log = self._place.folder / f"{name.replace(' ', '-')}.log"
        program = self._stack.enter_context(Program(name, argv, log=log, speaks=speaks))
        self._programs[name] = program
        return program

    def _ready(self) -> bool:
        argv = ["-m", "pfsup", "probe", "ready", "-c", str(self._place.config)]
        with Program("probe", argv, log=self._place.folder / "probe.log") as probe:
            return probe.wait(BOOT_S) == 0
