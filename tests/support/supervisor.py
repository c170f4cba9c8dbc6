"""Runs a real `pfsup start` for a test, and ends it and all of its children whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfsup.shared.frames import encode

from .waiting import until

HANG_S = 30.0
SUPPORT = Path(__file__).parent


class Supervisor:
    """`with Supervisor(domains={"a": "children:Calm"}) as pfsup:` starts one and waits until it answers.

    `domains` maps names to classes in tests/support/children.py; `config` is more TOML; `main=True` also runs dispatch,
    housekeeping and envelope as configured; `start=False` leaves the start to the test. Files that test children read
    and write are in `gates`. At the end it is stopped; no process of it may be left, and nothing strange may be open in
    it.
    """

    def __init__(
        self,
        *,
        domains: Mapping[str, str] | None = None,
        config: str = "",
        supervisor: Mapping[str, object] | None = None,
        main: bool = False,
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        start: bool = True,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="pfsup-")
        self.directory = Path(self._temporary.name)
        self.gates = self.directory / "gates"
        self.gates.mkdir()
        self.config_path = self.directory / "pfsup.toml"
        self.log_path = self.directory / "log"
        self.socket_path = self.directory / "run" / "pfsup.sock"
        self.config_path.write_text(_toml(self.directory, domains or {}, supervisor or {}, config, main=main))
        self._args = args
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PFSUP_")}
        self.environ = {**inherited, "GATES_DIR": str(self.gates), **(environ or {})}
        self._seen: set[int] = set()
        self.process: subprocess.Popen[bytes] | None = None
        self._start = start

    def __enter__(self) -> Supervisor:
        try:
            if self._start:
                self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it and wait until its control socket answers."""
        self.launch()
        until(lambda: self._answers() or self._ended_early(), within_s=HANG_S)
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"pfsup start ended with {self.process.returncode}:\n{self.log()}")

    def launch(self, *, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Start it without waiting."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.start_command, stdin=subprocess.DEVNULL, stdout=log, stderr=stderr or log, env=self.environ
            )
        return self.process

    @property
    def start_command(self) -> list[str]:
        """The command line that starts it."""
        return [*self.command("start"), "--app-dir", str(SUPPORT), *self._args]

    def command(self, *words: str) -> list[str]:
        """The command line for `pfsup words` with this configuration."""
        return [sys.executable, "-m", "pfsup", *words, "-c", str(self.config_path)]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `pfsup words` to its end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=HANG_S, env=self.environ, check=False
        )

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """One request on the control socket."""
        with self.connect() as sock:
            sock.sendall(encode({"v": 1, "verb": verb, **fields}))
            return json.loads(sock.makefile("rb").readline())

    def connect(self) -> socket.socket:
        """A connection to the control socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(os.fspath(self.socket_path))
        sock.settimeout(HANG_S)
        return sock

    def status(self) -> dict[str, Any]:
        """The status as an object."""
        status = self.ask("status")
        self._seen |= self._visible(status)
        return status

    def own(self) -> dict[str, Any]:
        """The supervisor's own part of the status."""
        return self.status()["supervisor"]

    def child(self, name: str) -> dict[str, Any]:
        """One child's part of the status."""
        return next(child for child in self.status()["children"] if child["name"] == name)

    def pid(self, name: str) -> int:
        """A running child's pid."""
        return self.child(name)["pid"]

    @property
    def parent_pid(self) -> int:
        """The supervisor's pid."""
        assert self.process is not None
        return self.process.pid

    def wait_state(self, name: str, state: str, *, generation: int = 1, within_s: float = HANG_S) -> dict[str, Any]:
        """The child's status once it is in `state`, in this generation or a later one."""

        def there() -> bool:
            child = self.child(name)
            return child["state"] == state and child["generation"] >= generation

        until(there, within_s=within_s)
        return self.child(name)

    def wait_ready(self, *, within_s: float = HANG_S) -> None:
        """Return once every wanted child is ready."""
        until(lambda: self.own()["ready"] is True, within_s=within_s)

    def open_gate(self, name: str, gate: str) -> None:
        """Let a test child go on."""
        (self.gates / f"{name}.{gate}").touch()

    def marks(self, name: str, mark: str) -> list[str]:
        """The lines (pids) that a test child left under `mark`."""
        path = self.gates / f"{name}.{mark}"
        return path.read_text().split() if path.exists() else []

    def wait_mark(self, name: str, mark: str, *, count: int = 1) -> list[str]:
        """The marks once there are `count` of them."""
        until(lambda: len(self.marks(name, mark)) >= count, within_s=HANG_S)
        return self.marks(name, mark)

    def signal(self, number: signal.Signals) -> None:
        """Signal the parent."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """The parent's exit code once it has ended."""
        assert self.process is not None
        return self.process.wait(HANG_S)

    def stop(self) -> int:
        """`pfsup stop`; its exit code."""
        return self.cli("stop").returncode

    def log(self) -> str:
        """What was logged until now."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def close(self) -> None:
        """End it, by force if it must be, and check what it leaves."""
        try:
            strange = self._strange()
            self._end()
            until(lambda: not [pid for pid in self._seen if is_alive(pid)], within_s=HANG_S)
            assert strange == (0, 0), self.log()
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait(HANG_S)
            for pid in filter(is_alive, self._seen):
                os.kill(pid, signal.SIGKILL)
            self._temporary.cleanup()

    def _end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(HANG_S)

    def _strange(self) -> tuple[int, int]:
        """Descriptors and threads that the supervisor itself does not know; none when it does not run any more."""
        if self.process is None or self.process.poll() is not None:
            return 0, 0
        self.process.send_signal(signal.SIGCONT)
        try:
            own = self.own()
        except (OSError, ValueError):
            return 0, 0  # already on its way out
        return own["strange_fds"], own["strange_tasks"]

    @staticmethod
    def _visible(status: dict[str, Any]) -> set[int]:
        """Its children's pids; none from inside another PID namespace, where they mean nothing here."""
        if status["supervisor"]["pid"] == 1:
            return set()
        return {child["pid"] for child in status["children"] if child["pid"]}

    @property
    def is_ready(self) -> bool:
        """True if it answers and every wanted child is ready."""
        return self._answers() and self.own()["ready"] is True

    def _answers(self) -> bool:
        try:
            self.status()
        except (OSError, ValueError):
            return False
        return True

    def _ended_early(self) -> bool:
        return self.process is None or self.process.poll() is not None


def is_alive(pid: int) -> bool:
    """True if that process runs. A zombie waits for whoever adopted it, and counts as gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def descriptors(pid: int) -> list[str]:
    """What a process has open, as the kernel writes it; what closes meanwhile is left out."""
    return [target for entry in Path(f"/proc/{pid}/fd").iterdir() if (target := _target(entry))]


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _toml(
    directory: Path, domains: Mapping[str, str], supervisor: Mapping[str, object], config: str, *, main: bool
) -> str:
    keys = {"runtime_dir": str(directory / "run"), "state_dir": str(directory / "state")}
    keys |= {"preload": main, **supervisor}  # test children need none of it, and a start costs half the time
    lines = ["[supervisor]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    for name, kind in domains.items():
        lines += [f"[domains.{name}]", f'kind = "{kind}"']
    if not main:
        for section in ("dispatch", "housekeeping", "domains.envelope"):
            lines += [f"[{section}]", "enabled = false"]
    if "[database]" not in config:
        lines += ["[database]", 'url = "postgresql://nobody@127.0.0.1:1/none"']
    return "\n".join([*lines, config, ""])
