"""Commit → the worker holds the message, at a steady rate: pfsup's dispatch against a bare LISTEN loop.

One producer commits a row at a time and notes when the commit's answer arrived; one reader in a process of its own
notes when XREADGROUP returned the row. Both sides have the same producer loop and the same reader; only what lies
between them differs. All clocks are CLOCK_MONOTONIC of one machine.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pfsup.supervisor.demo.waits import percentiles

from . import bare_latency, reader
from .figures import Side, Target, judge, sequence
from .report import Result
from .servers import Bench, PfsupStart

TARGET = Target(figure="commit -> worker holds the message, p50", limit=2.0, at_most=True)
QUEUE = "render"
STREAMS: Mapping[Side, str] = {"ours": f"pfsup:bench:{QUEUE}", "bare": "bare:jobs"}
COMMITS: Mapping[Side, bytes] = {
    "ours": b"SELECT id FROM pfsup.stage('render', %(aggregate)s, '{\"n\": 1}')",
    "bare": b"INSERT INTO bare.jobs (actor, aggregate, payload)"
    b" VALUES ('render', %(aggregate)s, '{\"n\": 1}') RETURNING id",
}
WARM_UP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`seconds` a run at `rate` rows a second, `repeat` times A B B A."""

    seconds: float
    rate: float
    repeat: int


def commit_steadily(pg_url: str, query: bytes, *, rows: int, rate: float) -> dict[str, int]:
    """Commit `rows` rows with random gaps around 1 / rate; return when each commit was answered, in ns, by row id."""
    pause, gaps = threading.Event(), random.Random(1)  # the same gaps for both sides
    committed: dict[str, int] = {}
    with psycopg.connect(pg_url, autocommit=True) as conn:
        due = time.monotonic()
        for n in range(rows):
            row = conn.execute(query, {"aggregate": f"order-{n}"}, prepare=True).fetchone()
            committed[str(row[0] if row else "")] = time.monotonic_ns()
            due += gaps.uniform(0.5, 1.5) / rate
            pause.wait(max(0.0, due - time.monotonic()))
    return committed


def waits_ms(committed: Mapping[str, int], held: Mapping[str, int], *, warm_up: int) -> list[float]:
    """Commit → held of every row but the first `warm_up`, in ms. RuntimeError when a row never arrived."""
    missing = committed.keys() - held.keys()
    if missing:
        raise RuntimeError(f"cannot measure: {len(missing)} of {len(committed)} rows never reached the reader")
    return [(held[key] - at) / 1e6 for key, at in list(committed.items())[warm_up:]]


def one_run(bench: Bench, side: Side, options: Options) -> list[float]:
    """One run of one side, with processes of its own."""
    bench.empty("pfsup.async_dispatches", "bare.jobs")
    bench.flush()
    rows = WARM_UP + round(options.seconds * options.rate)
    with ExitStack() as stack:
        arrivals = stack.enter_context(reader.started(bench, STREAMS[side], rows))
        if side == "ours":
            stack.enter_context(PfsupStart(bench))
        else:
            loop = stack.enter_context(
                bench.program("bare", [bare_latency.__file__, bench.pg_url, bench.redis_url, STREAMS[side]])
            )
            loop.expect("ready", within_s=30)
        committed = commit_steadily(bench.pg_url, COMMITS[side], rows=rows, rate=options.rate)
        held = arrivals.collect(within_s=30)
    return waits_ms(committed, held, warm_up=WARM_UP)


def ratio_of(order: list[Side], runs: list[dict[str, float]], name: str) -> float:
    """The median ratio of another figure than the judged one."""
    return round(judge(TARGET, order, [run[name] for run in runs]).ratio, 2)


def measure(bench: Bench, options: Options) -> Result:
    """Run everything and judge it."""
    bench.execute(bare_latency.TABLE)
    order = sequence(options.repeat)
    runs = [percentiles(one_run(bench, side, options)) for side in order]
    return Result(
        name="latency",
        unit=f"ms at {options.rate:g} commits/s",
        order=order,
        runs=runs,
        verdicts=[judge(TARGET, order, [run["p50"] for run in runs])],
        information={f"ratio of {name}": ratio_of(order, runs, name) for name in ("p95", "p99")},
    )


def bare_files() -> list[Path]:
    """The files that --show-bare prints."""
    return [Path(bare_latency.__file__)]
