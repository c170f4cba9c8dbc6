"""`pfsup dev` from the outside."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from pfsup.shared.db.migrate import LATEST
from pfsup.supervisor.embedded.account import servers_uids
from pfsup.supervisor.embedded.private import sweep
from pfsup.supervisor.embedded.servers import DUTIES
from support.servers import machine_pg_bin, redis_client
from support.waiting import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Dev:
    """A running `pfsup dev`, what it exports, and pidfds of its servers."""

    process: subprocess.Popen[str]
    database_url: str
    redis_url: str
    pidfds: dict[int, int]

    def servers_are_gone(self) -> bool:
        """Wait for both servers' ends."""
        return all(select.select([fd], [], [], 30)[0] for fd in self.pidfds.values())

    @property
    def directory(self) -> Path:
        """The sockets' directory."""
        return Path(self.redis_url.removeprefix("unix://").partition("?")[0]).parent


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pfsup", "dev", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@contextmanager
def dev(*arguments: str) -> Generator[Dev]:
    """Start it and read its exports as a shell would."""
    with _start(*arguments) as process:
        pidfds: dict[int, int] = {}
        try:
            exports = _exports(process)
            directory = Path(exports["PFSUP_REDIS__URL"].removeprefix("unix://").partition("?")[0]).parent
            for pid in map(int, (directory / "lock").read_text().split()[1:]):
                pidfds[pid] = os.pidfd_open(pid)
            yield Dev(
                process=process,
                database_url=exports["PFSUP_DATABASE__URL"],
                redis_url=exports["PFSUP_REDIS__URL"],
                pidfds=pidfds,
            )
        finally:
            process.kill()
            for fd in pidfds.values():
                os.close(fd)


def _exports(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    found: dict[str, str] = {}
    for line in process.stdout:
        if line.startswith("export "):
            name, _, value = shlex.split(line)[1].partition("=")
            found[name] = value
        if len(found) == 2:
            return found
    assert process.stderr is not None
    pytest.fail(process.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_dev_prints_working_addresses_of_a_migrated_database_and_leaves_nothing(number: signal.Signals) -> None:
    with dev() as running:
        with psycopg.connect(running.database_url) as conn:
            row = conn.execute("SELECT max(version) FROM pfsup.schema_migrations").fetchone()
            assert row == (LATEST,)
            member = "SELECT bool_and(pg_has_role('pfsup_' || duty, 'usage')) FROM unnest(%s::text[]) AS duty"
            assert conn.execute(member, (list(DUTIES),)).fetchone() == (True,)
        assert redis_client(running.redis_url).ping()
        running.process.send_signal(number)
        assert running.process.wait(30) == 0
        assert running.servers_are_gone()
        assert not running.directory.exists()


def test_dev_without_programs_says_so_and_ends_69() -> None:
    with _start("--pg-bin", "/nowhere") as process:
        assert process.stderr is not None
        assert "cannot use --pg-bin /nowhere" in process.stderr.read()
        assert process.wait(30) == 69


def test_dev_keeps_staged_rows_in_its_data_directory(short_dir: Path) -> None:
    data = ("--data", str(short_dir / "data"), "--pg-bin", str(machine_pg_bin(15)))
    with dev(*data) as running:
        with psycopg.connect(running.database_url) as conn:
            conn.execute("SELECT pfsup.stage('actor', '1')")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0
    with dev(*data) as running:
        with psycopg.connect(running.database_url) as conn:
            assert conn.execute("SELECT count(*) FROM pfsup.async_dispatches").fetchone() == (1,)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 0


def test_dev_says_which_server_died_and_ends_the_other() -> None:
    with dev() as running:
        _, redis_pid = running.pidfds
        os.kill(redis_pid, signal.SIGKILL)
        assert running.process.wait(30) == 1
        assert running.servers_are_gone()
        assert running.process.stderr is not None
        said = running.process.stderr.read()
        assert re.search(rf"cannot go on: Redis \(process {redis_pid}\) ended with signal SIGKILL", said)


def test_killed_dev_leaves_no_server_and_a_directory_that_the_next_sweep_deletes() -> None:
    with dev() as running:
        running.process.kill()
        assert running.servers_are_gone()
        until(lambda: sweep(servers_uids()) or not running.directory.exists())
        assert not running.directory.exists()
