"""PostgreSQL's client programs, of the same version as the server they talk to."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pfsup.supervisor.embedded.programs import find_postgres

from .servers import PgServer, machine_pg_bin


def pg_program(server: PgServer, name: str) -> str:
    """The path of psql, pg_dump, …: pg_dump refuses a server that is newer than itself."""
    with server.superuser() as conn:
        return str(_bin_dir(conn.info.server_version // 10000) / name)


@cache
def _bin_dir(major: int) -> Path:
    found = find_postgres().bin_dir
    return found if major != 15 else machine_pg_bin(major)
