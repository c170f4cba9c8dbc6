"""Processes that own embedded servers, to be killed: started as root or as nobody, and what they leave."""

from __future__ import annotations

import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pfsup
import psycopg
import pytest

from .waiting import HANG_S

OWNER = Path(__file__).with_name("embedded_owner.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerProcess:
    """A running owner and its servers."""

    process: subprocess.Popen[str]
    pids: list[int]
    logs: list[Path]
    database_url: str
    redis_url: str

    def kill(self) -> None:
        """SIGKILL the owner and return when the servers are gone. Fails when they outlive it by 30 s."""
        fds = [os.pidfd_open(pid) for pid in self.pids]
        try:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(HANG_S)
            for fd in fds:
                assert select.select([fd], [], [], HANG_S)[0], "a server outlives its owner"
        finally:
            for fd in fds:
                os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAs:
    """How an owner process is started: which Python, what it imports from, and the uid (None: the tests' own)."""

    python: str = sys.executable
    uid: int | None = None
    environ: dict[str, str] | None = None


@contextmanager
def as_nobody() -> Generator[RunAs]:
    """Nobody, with a Python of this version that it can read; skips where there is none.

    A virtual environment's Python often lies in root's closed home; the machine's own serves then, with a link to
    this checkout and the environment's packages to import from.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as nobody")
    packages = Path(psycopg.__file__).parent.parent
    link = Path(tempfile.mkdtemp(prefix="pft-", dir="/tmp"))
    try:
        link.chmod(0o755)
        (link / "pfsup").symlink_to(Path(pfsup.__file__).parent)
        environ = {**os.environ, "PYTHONPATH": f"{link}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
        for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
            found = RunAs(python=python, uid=pwd.getpwnam("nobody").pw_uid, environ=environ)
            if _can_import(found):
                yield found
                return
        pytest.skip("nobody can read neither this Python nor the machine's")
    finally:
        shutil.rmtree(link)


def _can_import(account: RunAs) -> bool:
    with suppress(OSError):
        tried = subprocess.run(
            [account.python, "-P", "-c", "import pfsup.supervisor.embedded.servers"],
            user=account.uid,
            group=account.uid,
            extra_groups=(),
            env=account.environ,
            cwd="/",
            capture_output=True,
            check=False,
        )
        return tried.returncode == 0
    return False


@contextmanager
def owner_process(root: Path, data: Path | None = None, *, account: RunAs) -> Generator[OwnerProcess]:
    """Start an owner; killed at the end if the test did not."""
    process = subprocess.Popen(
        [account.python, "-P", str(OWNER), str(root), *([str(data)] if data else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        user=account.uid,
        group=account.uid,
        extra_groups=None if account.uid is None else (),
        env=account.environ,
    )
    with process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            yield OwnerProcess(
                process=process,
                pids=said["pids"],
                logs=[Path(log) for log in said["logs"]],
                database_url=said["database_url"],
                redis_url=said["redis_url"],
            )
        finally:
            process.kill()
