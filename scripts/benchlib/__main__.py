"""The command line of scripts/bench."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson
from pfsup.config.errors import PfsupError

from . import discovery, drain, latency, recovery, stage
from .embedded import started
from .report import Result
from .servers import Bench
from .surroundings import environment


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure pfsup against a bare loop in the same run, on servers of its own with fsync on.

    Each repetition is A B B A: ours, bare, bare, ours. The ratio of neighbours is what is judged, their median against
    the target; absolute figures belong to the machine that printed them. Results that were kept: scripts/results.
    """


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every bench has."""
    for option in (
        click.option("--pg-bin", metavar="DIR", help="Folder of PostgreSQL's programs. Default: the embedded 18."),
        click.option("--show-bare", is_flag=True, help="Print the bare code that ours is compared with, and end."),
        click.option("--check", is_flag=True, help="Exit 1 when a target is missed."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--repeat", default=3, show_default=True, type=click.IntRange(1), help="How often A B B A runs."),
    ):
        command = option(command)
    return command


@bench.command(name="latency")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Length of each run.")
@click.option("--rate", default=200.0, show_default=True, type=click.FloatRange(1), help="Commits a second.")
@shared_options
def latency_command(*, seconds: float, rate: float, repeat: int, **shared: Any) -> None:
    """Commit → worker holds the message, against a bare LISTEN + claim + XADD loop."""
    options = latency.Options(seconds=seconds, rate=rate, repeat=repeat)
    run(lambda place: latency.measure(place, options), latency.bare_files(), **shared)


@bench.command(name="drain")
@click.option("--rows", default=50_000, show_default=True, type=click.IntRange(1), help="Due rows.")
@shared_options
def drain_command(*, rows: int, repeat: int, **shared: Any) -> None:
    """A backlog of due rows, against a bare sequential claim + XADD + mark loop."""
    options = drain.Options(rows=rows, repeat=repeat)
    run(lambda place: drain.measure(place, options), drain.bare_files(), **shared)


@bench.command(name="stage")
@click.option("--rows", default=3000, show_default=True, type=click.IntRange(1), help="Calls a run.")
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0), help="Each throughput; 0: none.")
@shared_options
def stage_command(*, rows: int, seconds: float, repeat: int, **shared: Any) -> None:
    """stage(), against a bare INSERT; and commits/s of 32 clients with and without the trigger."""
    options = stage.Options(rows=rows, seconds=seconds, repeat=repeat)
    run(lambda place: stage.measure(place, options), stage.bare_files(), **shared)


@bench.command(name="recovery")
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Length of each run.")
@click.option("--rate", default=100.0, show_default=True, type=click.FloatRange(1), help="Commits a second.")
@click.option("--rows", default=10_000, show_default=True, type=click.IntRange(1), help="Stuck rows a domain.")
@shared_options
def recovery_command(*, seconds: float, rate: float, rows: int, repeat: int, **shared: Any) -> None:
    """Dispatch while every domain recovers at once, against the same load with recovery switched off."""
    options = recovery.Options(seconds=seconds, rate=rate, stuck=rows, repeat=repeat)
    run(lambda place: recovery.measure(place, options), recovery.bare_files(), **shared)


@bench.command(name="discovery")
@click.option("--rows", default=1_000_000, show_default=True, type=click.IntRange(1), help="Rows in the table.")
@click.option("--stuck", default=10_000, show_default=True, type=click.IntRange(100), help="Candidates among them.")
@click.option("--asleep", default=100_000, show_default=True, type=click.IntRange(1), help="More, in the ledger.")
@shared_options
def discovery_command(*, rows: int, stuck: int, asleep: int, repeat: int, **shared: Any) -> None:
    """Finding a batch of candidates among all rows, against a table that holds the candidates alone."""
    options = discovery.Options(rows=rows, stuck=stuck, asleep=asleep, repeat=repeat)
    run(lambda place: discovery.measure(place, options), discovery.bare_files(), **shared)


def run(
    measure: Callable[[Bench], Result],
    bare_files: list[Path],
    *,
    as_json: bool,
    check: bool,
    show_bare: bool,
    pg_bin: str | None,
) -> None:
    """Start the servers, measure, print; or print the bare code."""
    if show_bare:
        print("\n".join(path.read_text() for path in bare_files))
        return
    with started(pg_bin) as place:
        told = environment(pg_url=place.pg_url, redis_url=place.redis_url, folder=place.folder)
        result = measure(place)
    if as_json:
        command = " ".join(["scripts/bench", *sys.argv[1:]])
        print(orjson.dumps({"command": command, **result.as_json(told)}).decode())
    else:
        print("\n".join(result.as_lines(told)))
    sys.exit(exit_code(result, check=check))


def exit_code(result: Result, *, check: bool) -> int:
    """1 when a target is missed and somebody asked, else 0."""
    return 1 if check and not result.met else 0


if __name__ == "__main__":
    try:
        bench(prog_name="scripts/bench")
    except PfsupError as error:
        sys.stderr.write(f"scripts/bench: {error}\n")
        sys.exit(error.exit_code)
