"""Real servers for tests, made by the code that `pfsup dev` runs. Durability is off: nothing outlives a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from pfsup.config.errors import PfsupError
from pfsup.shared.db.migrate import migrate
from pfsup.shared.db.migrations import reference_tables
from pfsup.supervisor.embedded.programs import machine_postgres, machine_redis
from pfsup.supervisor.embedded.servers import PostgresOptions, RedisOptions, Servers
from psycopg import sql

FAST = (
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=200",
    "autovacuum=off",
)
OWNER = "t_owner"
# login role → what it may do: the role <schema>_<suffix> and nothing else
LOGINS = {"t_app": "stage", "t_worker": "work", "t_run": "run", "t_operate": "operate", "t_read": "read"}


def missing(reason: str) -> None:
    """Skip for want of a program of this machine; fail where CI promised to have it (CI and PFSUP_REQUIRE set)."""
    if os.environ.get("CI") and os.environ.get("PFSUP_REQUIRE"):
        pytest.fail(reason)
    pytest.skip(reason)


def machine_pg_bin(major: int) -> Path:
    """The machine's PostgreSQL `major`; skips the test where there is none."""
    bin_dir = machine_postgres(major)
    if bin_dir is None:
        missing(f"PostgreSQL {major} of the machine is missing: install its server package")
    assert bin_dir is not None
    return bin_dir


def machine_redis_server() -> Path:
    """The machine's redis-server; skips the test where there is none."""
    program = machine_redis()
    if program is None:
        missing("redis-server of the machine is missing: install its package")
    assert program is not None
    return program


def redis_client(url: str) -> Any:
    """A client whose answers are text. Any: redis-py's own annotations are partial."""
    return redis.Redis.from_url(url, decode_responses=True)  # pyright: ignore[reportUnknownMemberType] - see above


class PgServer:
    """One PostgreSQL with the tests' login roles. Templates are made once a schema, from the migration as it is now."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._templates: dict[tuple[str, str], str] = {}
        self._count = 0
        with self.superuser() as conn:
            conn.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER CREATEROLE").format(sql.Identifier(OWNER)))
            for name in LOGINS:
                conn.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER").format(sql.Identifier(name)))

    def __repr__(self) -> str:
        return f"<PgServer {self._servers.postgres}>"

    @property
    def pid(self) -> int:
        """The postmaster."""
        return self._servers.postgres.child.pid

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._servers.postgres.log

    @property
    def home(self) -> Path:
        """The cluster's directory."""
        return self._servers.postgres.home

    def url(self, database: str, user: str = OWNER) -> str:
        """The address of a database over the socket."""
        return self._servers.postgres.url(database, user=user)

    def superuser(self, database: str = "postgres") -> psycopg.Connection:
        """An autocommit connection of the superuser: to arrange and to look, never what is tested."""
        return psycopg.connect(self._servers.postgres.url(database), autocommit=True)

    def create(self, template: str | None = None) -> str:
        """Make a database that OWNER owns, a copy of `template` if one is named; return its name."""
        self._count += 1
        name = f"t{self._count}"
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}")
        with self.superuser() as conn:
            conn.execute(
                statement.format(sql.Identifier(name), sql.Identifier(OWNER), sql.Identifier(template or "template1"))
            )
        return name

    def drop(self, name: str) -> None:
        """Drop a database, whoever is connected."""
        with self.superuser() as conn:
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def template(self, schema: str, *, extra: str = "") -> str:
        """The name of a database in which `schema` is migrated and nothing else happened; made at the first call.

        `extra`: with the reference tables of that name, in a schema of that name.
        """
        if (schema, extra) not in self._templates:
            name = self.create(template=self.template(schema) if extra else None)
            if extra:
                migrate(self.url(name), schema=extra, steps=reference_tables(extra, outbox=schema))
            else:
                migrate(self.url(name), schema=schema)
                self.grant_logins(schema)
            self._templates[schema, extra] = name
        return self._templates[schema, extra]

    def grant_logins(self, schema: str) -> None:
        """Give each login role its one role of `schema`. Roles are the cluster's: once is enough."""
        with self.superuser() as conn:
            for login, suffix in LOGINS.items():
                granted = sql.Identifier(f"{schema}_{suffix}")
                conn.execute(sql.SQL("GRANT {} TO {}").format(granted, sql.Identifier(login)))

    def stop(self) -> None:
        """Shut the server down; `start` brings it back with its data."""
        self._servers.postgres.stop()

    def start(self) -> None:
        """Start the server again."""
        self._servers.postgres.start()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def stop_frozen(self) -> None:
        """Freeze every process of the server (SIGSTOP): connections stay open and nothing answers."""
        for pid in [self.pid, *_children(self.pid)]:
            _signal(pid, signal.SIGSTOP)  # a backend may end between the look and the signal

    def resume(self) -> None:
        """Let a frozen server run on."""
        for pid in [*_children(self.pid), self.pid]:
            _signal(pid, signal.SIGCONT)


class RedisServer:
    """One Redis-protocol server."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def __repr__(self) -> str:
        return f"<RedisServer {self._servers.redis}>"

    @property
    def url(self) -> str:
        """The address over the socket."""
        return self._servers.redis_url

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._servers.redis.child.pid

    def client(self) -> Any:
        """A client to arrange and to look; texts, not bytes."""
        return redis_client(self.url)

    def flush(self) -> None:
        """Empty the server, its functions and its scripts, and wake a frozen one."""
        self.resume()
        with self.client() as client:
            client.flushall()

    def stop_frozen(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server run on."""
        _signal(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Shut the server down; what it held is lost."""
        self._servers.redis.stop()

    def start(self) -> None:
        """Start it again, empty."""
        self._servers.redis.start()

    def restart(self) -> None:
        """Stop and start: every connection is cut and every stream gone."""
        self.stop()
        self.start()


@contextmanager
def pg(bin_dir: Path | None = None, *, flags: Sequence[str] = (), port: int = 5432) -> Generator[PgServer]:
    """A PostgreSQL of one's own: the wheel's, or the one in `bin_dir`."""
    options = PostgresOptions(bin_dir=bin_dir, flags=(*FAST, *flags), port=port)
    with Servers(postgres=options, redis=None) as servers:
        server = PgServer(servers)
        try:
            yield server
        finally:
            with suppress(PfsupError):  # a test may have stopped it
                server.resume()


@contextmanager
def redis_like(program: Path | None = None, *, flags: Sequence[str] = ()) -> Generator[RedisServer]:
    """A Redis of one's own: the wheel's Valkey, or `program`."""
    with Servers(postgres=None, redis=RedisOptions(program=program, flags=flags)) as servers:
        yield RedisServer(servers)


class PgServers:
    """The session's PostgreSQL servers by name, started when first asked for: "18" (wheel), "15" (machine)."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, PgServer] = {}

    def get(self, name: str) -> PgServer:
        """The running server of that name; skips the test where the machine has none."""
        if name not in self._running:
            bin_dir = None if name == "18" else machine_pg_bin(int(name))
            self._running[name] = self._stack.enter_context(pg(bin_dir))
        return self._running[name]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
