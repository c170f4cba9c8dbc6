"""PostgreSQL and Redis for as long as a `with` block, or for as long as the process if that ends first.

    with Servers() as servers:
        psycopg.connect(servers.database_url); redis.Redis.from_url(servers.redis_url)

No threads, no event loop. The servers end cleanly when the owner is killed; what a killed owner leaves in /tmp is
deleted by the next start.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ...config.errors import NotPermitted, PfsupError
from .account import Chosen, choose, myself, servers_uids
from .child import Child, ServerFailed
from .place import Place
from .postgres import PORT, Postgres
from .private import Lock, PrivateDir, lock_persistent, make_private_dir, sweep
from .programs import find_postgres, find_redis
from .valkey import Valkey

__all__ = ["PostgresOptions", "RedisOptions", "ServerFailed", "Servers"]
DATABASE = "pfsup"
DUTIES = ("stage", "work", "run", "operate", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """`bin_dir` names the programs' directory (default: find them); `flags` are settings, as ("fsync=off",).

    `port` names the socket, and is the TCP port where `flags` set listen_addresses.
    """

    bin_dir: Path | None = None
    port: int = PORT
    flags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """`program` names the server (default: find it); `flags` go to its command line as they are."""

    program: Path | None = None
    flags: Sequence[str] = ()


class Servers:
    """Starts what is asked for on entry, stops it on exit. `data` keeps the files there; default: a private directory.

    Pass None for a server that is not wanted. Entry raises MissingProgram, ServerFailed (with the log's tail),
    AlreadyRunning (`data` is in use) or NotPermitted.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        postgres: PostgresOptions | None = PostgresOptions(),
        redis: RedisOptions | None = RedisOptions(),
        sockets_root: Path | None = None,
    ) -> None:
        self._data = data
        self._options = (postgres, redis)
        self._sockets_root = sockets_root
        self._stack = ExitStack()
        self._postgres: Postgres | None = None
        self._redis: Valkey | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def postgres(self) -> Postgres:
        """The database server."""
        if self._postgres is None:
            raise PfsupError("cannot name the database server: it was not asked for or is not started")
        return self._postgres

    @property
    def redis(self) -> Valkey:
        """The Redis server."""
        if self._redis is None:
            raise PfsupError("cannot name the Redis server: it was not asked for or is not started")
        return self._redis

    @property
    def database_url(self) -> str:
        """The database `pfsup` as its owner `pfsup` (no superuser, may create roles)."""
        return self.postgres.url(DATABASE, user=DATABASE)

    @property
    def superuser_url(self) -> str:
        """The database `pfsup` as the superuser."""
        return self.postgres.url(DATABASE)

    @property
    def redis_url(self) -> str:
        """Redis over its socket."""
        return self.redis.url

    def migrate(self) -> None:
        """Bring the schema up to date, and let the owner act in each of pfsup's roles, as one developer does."""
        from ...shared.db.migrate import migrate

        migrate(self.database_url)
        self.postgres.grant(DATABASE, [f"pfsup_{duty}" for duty in DUTIES])

    @property
    def children(self) -> tuple[Child, ...]:
        """The running servers' processes; each `pidfd` becomes readable when its server ends."""
        return tuple(server.child for server in (self._postgres, self._redis) if server is not None)

    def _start(self, stack: ExitStack) -> None:
        wanted = self._wanted()
        sweep(servers_uids(), self._sockets_root)
        private = make_private_dir(self._sockets_root)
        stack.callback(private.remove)
        home, lock = (private.path, private.lock) if self._data is None else self._kept(self._data, stack)
        owner = _owner_of(home / "postgres")
        chosen = choose(wanted, private=private, reach=home, owner=owner)
        self._start_postgres(stack, chosen, self._place("postgres", home, private, lock, chosen))
        self._start_redis(stack, chosen, self._place("redis", home, private, lock, chosen))
        pids = [child.pid for child in self.children]
        for held in {lock, private.lock}:
            held.write_pids(pids)

    def _wanted(self) -> Chosen:
        postgres, redis = self._options
        return Chosen(
            account=myself(),
            postgres=find_postgres(postgres.bin_dir) if postgres is not None else None,
            redis=find_redis(redis.program) if redis is not None else None,
        )

    def _kept(self, data: Path, stack: ExitStack) -> tuple[Path, Lock]:
        home = data.absolute()
        try:
            home.mkdir(mode=0o711, parents=True, exist_ok=True)
            lock = lock_persistent(home)
        except OSError as error:
            raise NotPermitted(f"cannot use {home}: {error.strerror}: name a directory that you own") from error
        stack.callback(lock.close)
        return home, lock

    def _place(self, name: str, home: Path, private: PrivateDir, lock: Lock, chosen: Chosen) -> Place:
        log = home / f"{name}.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        return Place(
            home=home / name,
            sockets=private.path,
            log=log,
            account=chosen.account,
            lock=lock,
            keep=self._data is not None,
        )

    def _start_postgres(self, stack: ExitStack, chosen: Chosen, place: Place) -> None:
        options, _ = self._options
        if options is None or chosen.postgres is None:
            return
        server = Postgres(chosen.postgres, place, flags=options.flags, port=options.port)
        stack.callback(server.stop)
        server.start()
        server.ensure_database(DATABASE)
        self._postgres = server

    def _start_redis(self, stack: ExitStack, chosen: Chosen, place: Place) -> None:
        _, options = self._options
        if options is None or chosen.redis is None:
            return
        server = Valkey(chosen.redis, place, flags=options.flags)
        stack.callback(server.stop)
        server.start()
        self._redis = server


def _owner_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
