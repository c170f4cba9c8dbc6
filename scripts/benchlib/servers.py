"""The servers of a bench, and `pfsup start` on them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psycopg
from pfsup.config.errors import PfsupError
from pfsup.supervisor.demo.programs import Program

from .broker import open_redis

CONFIG = """
[database]
url = "{pg_url}"
[redis]
url = "{redis_url}"
[supervisor]
name = "bench"
runtime_dir = "{folder}/run"
state_dir = "{folder}/state"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Two servers that run, the programs beside them, and a private folder. `admin_url`: as the superuser."""

    pg_url: str
    admin_url: str
    redis_url: str
    pg_bin: Path
    folder: Path

    def execute(self, sql: str) -> None:
        """Run SQL of ours as the database's owner."""
        with psycopg.connect(self.pg_url, autocommit=True) as conn:
            conn.execute(sql.encode())

    def empty(self, *tables: str) -> None:
        """Empty those of `tables` that exist and write a checkpoint, so that no run pays for the one before it."""
        with psycopg.connect(self.pg_url, autocommit=True) as conn:
            for table in tables:
                if conn.execute(b"SELECT to_regclass(%s)", [table]).fetchone() != (None,):
                    conn.execute(f"TRUNCATE {table} CASCADE".encode())
        with psycopg.connect(self.admin_url, autocommit=True) as conn:
            conn.execute(b"CHECKPOINT")

    def flush(self) -> None:
        """Forget everything in Redis."""
        with open_redis(self.redis_url) as client:
            client.flushall()

    def program(self, name: str, argv: Sequence[str]) -> Program:
        """A process that ends with the bench, with its output in the folder and pipes to talk to it."""
        return Program(name, argv, log=self.folder / f"{name}.log", speaks=True)


class PfsupStart:
    """A real `pfsup start`, ready when entered, stopped by SIGTERM when left. PfsupError when it does not get ready."""

    def __init__(self, bench: Bench, *, extra: str = "") -> None:
        self._bench = bench
        self._config = bench.folder / "pfsup.toml"
        self._config.write_text(
            CONFIG.format(pg_url=bench.pg_url, redis_url=bench.redis_url, folder=bench.folder) + extra
        )

    def __enter__(self) -> Self:
        argv = ["-m", "pfsup", "start", "-c", str(self._config)]
        self._program = Program("pfsup", argv, log=self._bench.folder / "pfsup.log")
        try:
            self._until_ready(within_s=30)
        except BaseException:
            self._program.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.end(within_s=30)

    def status(self) -> dict[str, Any] | None:
        """What `pfsup status --json` prints, or None while nothing answers."""
        argv = [sys.executable, "-m", "pfsup", "status", "--json", "-c", str(self._config)]
        said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        return cast("dict[str, Any]", json.loads(said)) if said.startswith("{") else None

    def _until_ready(self, *, within_s: float) -> None:
        tick, deadline = threading.Event(), time.monotonic() + within_s
        argv = [sys.executable, "-m", "pfsup", "probe", "ready", "-c", str(self._config)]
        while subprocess.run(argv, capture_output=True, check=False).returncode != 0:
            if self._program.exit_code is not None or time.monotonic() > deadline:
                raise PfsupError(f"cannot measure: pfsup start is not ready\n{self._program.tail()}")
            tick.wait(0.05)
