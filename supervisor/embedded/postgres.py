"""A real PostgreSQL on a Unix socket. Who can enter the socket's directory (0700) is trusted; TCP needs a password."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from ...config.errors import NotPermitted, PfsupError
from .account import environment
from .child import Child
from .place import Place
from .private import checked_socket
from .programs import PostgresPrograms

SUPERUSER = "postgres"
PORT = 5432  # without listen_addresses only part of the socket's name
READY_WITHIN_S = 60.0


class Postgres:
    """One cluster and its server. Files of another major version are refused, never converted."""

    __slots__ = ("_child", "_flags", "_place", "_programs", "port")

    def __init__(
        self, programs: PostgresPrograms, place: Place, *, flags: Sequence[str] = (), port: int = PORT
    ) -> None:
        self._programs = programs
        self._place = place
        self._flags = tuple(flags)
        self.port = port
        self._child: Child | None = None
        checked_socket(place.sockets / f".s.PGSQL.{port}.lock")

    def __repr__(self) -> str:
        return f"<Postgres {self._programs.origin} {self._place.sockets} {self._child}>"

    @property
    def child(self) -> Child:
        """The server's process. Raises PfsupError when it was not started."""
        if self._child is None:
            raise PfsupError("cannot name PostgreSQL's process: it is not started")
        return self._child

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._place.log

    @property
    def home(self) -> Path:
        """The cluster's directory."""
        return self._place.home

    def url(self, database: str, user: str = SUPERUSER) -> str:
        """The address over the socket, without a password."""
        port = "" if self.port == PORT else f"&port={self.port}"
        return f"postgresql://{quote(user)}@/{quote(database)}?host={quote(str(self._place.sockets), safe='')}{port}"

    def start(self) -> None:
        """Create the cluster if there is none, start the server, return when it answers. Raises ServerFailed."""
        if not (self.home / "PG_VERSION").exists():
            self._init()
        else:
            _check_version(self.home, self._programs)
        self._child = Child(self._argv(), name="PostgreSQL", stop_signal=signal.SIGINT, **self._place.for_child())
        try:
            self._child.wait_ready(self._is_ready, within_s=READY_WITHIN_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut down fast: clients are cut, the checkpoint is written. After 30 s immediately; never SIGKILL."""
        if self._child is not None:
            self._child.stop(harder=signal.SIGQUIT)
            self._child.close()
            self._child = None

    def ensure_database(self, name: str) -> None:
        """Make a database and its owner of the same name, who may log in and create roles and is no superuser."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
                conn.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEROLE").format(sql.Identifier(name)))
            if not conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(name)))

    def grant(self, member: str, roles: Sequence[str]) -> None:
        """Make `member` a full member of `roles`."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
            # From 16 on the creator of a role is a member that inherits nothing, and a plain GRANT leaves it so.
            options = "WITH INHERIT TRUE, SET TRUE" if conn.info.server_version >= 160000 else ""
            statement = sql.SQL("GRANT {} TO {} {}")
            granted = sql.SQL(", ").join(map(sql.Identifier, roles))
            conn.execute(statement.format(granted, sql.Identifier(member), sql.SQL(options)))

    def _init(self) -> None:
        self._place.make_home()
        argv = [
            str(self._programs.initdb),
            *("-D", str(self.home), "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-instructions"),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
            *(() if self._place.keep else ("--no-sync",)),
        ]
        child = Child(argv, name="initdb", **self._place.for_child())
        try:
            child.wait_success(within_s=READY_WITHIN_S)
        finally:
            child.close()

    def _argv(self) -> list[str]:
        settings = ["listen_addresses=", f"port={self.port}", "logging_collector=off", *self._flags]
        flags = [part for setting in settings for part in ("-c", setting)]
        return [str(self._programs.postgres), "-D", str(self.home), "-k", str(self._place.sockets), *flags]

    def _is_ready(self) -> bool:
        # Line 8 of postmaster.pid is the postmaster's own word; the first is its pid: a stale file is not believed.
        try:
            lines = (self.home / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.child.pid) and lines[7].strip() == "ready"


def _check_version(home: Path, programs: PostgresPrograms) -> None:
    wanted = (home / "PG_VERSION").read_text().strip()
    asked = subprocess.run([programs.postgres, "--version"], check=True, capture_output=True, env=environment())
    found = asked.stdout.decode().split()[2]
    if found.split(".")[0] != wanted:
        raise NotPermitted(
            f"cannot use {home}: it was made by PostgreSQL {wanted}, the programs found ({programs.origin}) are "
            f"{found}: name those of {wanted} with --pg-bin, or another directory"
        )
