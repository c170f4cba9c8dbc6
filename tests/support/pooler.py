"""A PgBouncer that pools transactions, before a test's database. The machine's program; skipped where it is missing."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from pfsup.supervisor.embedded.account import enter_namespace
from psycopg.conninfo import conninfo_to_dict

from .database import Database
from .servers import missing
from .waiting import until


@contextmanager
def pgbouncer(database: Database, directory: Path, *, port: int, extra: str = "") -> Generator[str]:
    """Run it until the block ends; yields the address of the database through it, as the run role."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        missing("pgbouncer of the machine is missing: install its package")
    told = conninfo_to_dict(database.run_url)
    place = directory / "pooler"
    place.mkdir()
    config, users = place / "pgbouncer.ini", place / "users.txt"
    users.write_text('"t_run" ""\n')
    config.write_text(
        "[databases]\n"
        f"{database.name} = host={told['host']} port={told.get('port', 5432)} dbname={database.name} user=t_run\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {users}\npool_mode = transaction\nlogfile = {place / 'log'}\n"
        f"default_pool_size = 3\nserver_check_delay = 0\n{extra}\n"
    )
    # It refuses to run as root, and the servers' directory admits only their own account. That is root's where the
    # server runs in a user namespace (a checkout that only root can read): the pooler then does too.
    owner = Path(str(told["host"])).stat().st_uid
    is_root = os.geteuid() == 0
    if is_root and owner != 0:
        directory.chmod(0o755)
        for path in (place, config, users):
            os.chown(path, owner, -1)
    switch = ["-u", pwd.getpwuid(owner).pw_name] if is_root and owner != 0 else []
    child = subprocess.Popen(
        [str(program), "-q", *switch, str(config)],
        stderr=subprocess.DEVNULL,
        preexec_fn=enter_namespace if is_root and owner == 0 else None,  # noqa: PLW1509 - a system call and three files
    )
    try:
        until(lambda: _answers(port) or child.poll() is not None, what="pgbouncer listens")
        assert child.poll() is None, f"pgbouncer ended with {child.returncode}: {_log(place)}"
        yield f"postgresql://t_run@127.0.0.1:{port}/{database.name}"
    finally:
        child.terminate()
        child.wait(30)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _log(place: Path) -> str:
    log = place / "log"
    return log.read_text()[-1000:] if log.exists() else "it wrote no log"
