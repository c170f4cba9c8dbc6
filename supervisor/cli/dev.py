"""`pfsup dev`: a migrated PostgreSQL and a Redis for one's own machine, until Ctrl-C."""

from __future__ import annotations

import select
import shlex
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ...config.errors import EXIT_FAILED, EXIT_OK, PfsupError
from .common import complain, json_option, print_json

if TYPE_CHECKING:
    from ..embedded.servers import Servers

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command()
@click.option(
    "--data",
    "data_dir",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data in DIR and use it again next time. Default: a temporary directory.",
)
@click.option(
    "--pg-bin",
    "pg_bin",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The directory of initdb and postgres. Default: $PFSUP_PG_BIN, the Python package, the machine's newest.",
)
@json_option
def command(data_dir: Path | None, pg_bin: Path | None, as_json: bool) -> int:
    """Run PostgreSQL and Redis for development, migrated and ready, until Ctrl-C or SIGTERM.

    The servers listen on Unix sockets only you can open. Without --data everything is deleted at the end.
    """
    from ..embedded.servers import PostgresOptions, Servers

    try:
        with _stop_socket() as stop, Servers(data_dir, postgres=PostgresOptions(bin_dir=pg_bin)) as servers:
            servers.migrate()
            _announce(servers, data_dir, as_json=as_json)
            return _wait(servers, stop)
    except PfsupError as error:
        return complain(error)


def _announce(servers: Servers, data_dir: Path | None, *, as_json: bool) -> None:
    if as_json:
        where = str(data_dir.absolute()) if data_dir is not None else None
        print_json({"database_url": servers.database_url, "redis_url": servers.redis_url, "data_dir": where})
        return
    kept = f"kept in {data_dir}" if data_dir is not None else "temporary: gone when this command ends"
    click.echo(f"PostgreSQL and Redis run, the schema is migrated ({kept}).")
    click.echo("In another terminal paste these two lines, then run: pfsup start\n")
    click.echo(f"export PFSUP_DATABASE__URL={shlex.quote(servers.database_url)}")
    click.echo(f"export PFSUP_REDIS__URL={shlex.quote(servers.redis_url)}\n")
    click.echo("Ctrl-C stops both.")


def _wait(servers: Servers, stop: socket.socket) -> int:
    """Return 0 after a stop signal, 1 after a server ended by itself (which is said, with its log's tail)."""
    poller = select.poll()
    poller.register(stop, select.POLLIN)
    for child in servers.children:
        poller.register(child.pidfd, select.POLLIN)
    poller.poll()
    ended = [child for child in servers.children if not child.is_alive()]
    if not ended:
        return EXIT_OK
    for child in ended:
        click.echo(f"pfsup: cannot go on: {child.obituary()}", err=True)
    return EXIT_FAILED


def _only_wake(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor says all: the handler only replaces the default, which would end the process."""
    del number, frame


@contextmanager
def _stop_socket() -> Generator[socket.socket]:
    """A socket that becomes readable at the first stop signal, also at one that comes while the servers start."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    with reading, writing:
        before = {number: signal.signal(number, _only_wake) for number in STOP_SIGNALS}
        old_fd = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, action in before.items():
                signal.signal(number, action)
