"""Servers for a bench: embedded ones that wait for the disk as a real one does, migrated."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pfsup.shared.db.migrate import migrate
from pfsup.supervisor.embedded.programs import find_postgres
from pfsup.supervisor.embedded.servers import PostgresOptions, Servers

from .servers import Bench

# Statistics of a figure should not depend on when a checkpoint or the autovacuum of another run comes: room for both.
FLAGS = ("fsync=on", "max_wal_size=4GB", "checkpoint_timeout=30min")


@contextmanager
def started(pg_bin: str | None) -> Generator[Bench]:
    """Two servers with fsync on and the newest schema; both end, and nothing is left, when the block ends."""
    programs = find_postgres(Path(pg_bin) if pg_bin else None)
    with Servers(postgres=PostgresOptions(bin_dir=programs.bin_dir if pg_bin else None, flags=FLAGS)) as servers:
        folder = servers.redis.socket.parent / "bench"
        folder.mkdir(mode=0o700)
        migrate(servers.database_url)
        yield Bench(
            pg_url=servers.database_url,
            admin_url=servers.superuser_url,
            redis_url=servers.redis_url,
            pg_bin=programs.bin_dir,
            folder=folder,
        )
