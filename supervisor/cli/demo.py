"""`pfsup demo`: the main job on a simulated shop, on servers that it starts itself, with a proof at the end."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from ...config.errors import EXIT_FAILED, EXIT_OK
from .common import json_option, print_json

EXIT_INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("demo")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0.5), help="How long orders come in.")
@click.option("--rate", default=100.0, show_default=True, type=click.FloatRange(1, 2000), help="Orders a second.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 32), help="Worker processes.")
@click.option("--pg-bin", type=click.Path(path_type=Path), metavar="DIR", help="Folder of PostgreSQL's programs.")
@click.option("--keep", is_flag=True, help="Keep the folder with the configuration and the logs, and say where it is.")
@json_option
def command(*, seconds: float, rate: float, workers: int, pg_bin: Path | None, keep: bool, as_json: bool) -> int:
    """Run a simulated shop and prove that nothing was lost.

    Starts PostgreSQL and Redis, `pfsup start`, worker processes and a shop that commits orders together with their
    envelopes. Afterwards two lists that pfsup does not write are compared: what the shop committed, and what was
    executed. Exit 1 if an order was lost or executed twice.
    """
    try:
        with interruptible():
            return run(seconds=seconds, rate=rate, workers=workers, pg_bin=pg_bin, keep=keep, as_json=as_json)
    except KeyboardInterrupt:
        sys.stderr.write("pfsup: the demo was interrupted; everything it started has ended\n")
        return EXIT_INTERRUPTED


def run(*, seconds: float, rate: float, workers: int, pg_bin: Path | None, keep: bool, as_json: bool) -> int:
    """Play the demo on servers of its own; the exit code. `keep` leaves the servers' data and the logs behind."""
    from ...shared.db.migrate import migrate
    from ..demo.board import board_for
    from ..demo.place import Place
    from ..demo.play import Script, play
    from ..embedded.servers import PostgresOptions, Servers

    print(f"pfsup demo: a shop commits {rate:g} orders/s for {seconds:g} s, {workers} worker processes", flush=True)
    kept = Path(tempfile.mkdtemp(prefix="pfsup-demo-")) if keep else None
    with Servers(kept, postgres=PostgresOptions(bin_dir=pg_bin)) as servers:
        folder = (kept or servers.redis.socket.parent) / "demo"
        folder.mkdir(mode=0o700)
        migrate(servers.database_url)
        sockets = servers.redis.socket.parent
        place = Place(owner_url=servers.database_url, redis_url=servers.redis_url, folder=folder, sockets=sockets)
        board = board_for(sys.stdout, plain=as_json)
        summary = play(place, Script(seconds=seconds, rate=rate, workers=workers), board)
    print("\n".join(summary.as_lines()))
    if kept:
        print(f"kept: {kept}; look into it with: pfsup dev --data {kept}")
    if as_json:
        print_json(summary.as_json())
    return EXIT_OK if summary.holds else EXIT_FAILED


@contextmanager
def interruptible() -> Generator[None]:
    """Ctrl-C, SIGTERM and a lost terminal raise KeyboardInterrupt, once: a second one cannot cut the end short."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
