"""Dispatch's latency while every domain recovers thousands of stuck rows, against the same load without recovery.

Both sides have the same rows in the same tables, the same producer and the same reader; on one of them the domains are
switched off. Each domain runs every 0.2 s with batches of 250, all at once: far beyond the defaults (10 s and 25).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfsup.supervisor.demo.waits import percentiles

from . import reader, stuck
from .figures import Side, Target, judge, sequence
from .latency import COMMITS, STREAMS, WARM_UP, commit_steadily, waits_ms
from .report import Result
from .servers import Bench, PfsupStart

# ours <= 1.25 x bare + 2 ms is the same as ours <= 1.25 x (bare + 1.6 ms).
SLACK_MS = 2 / 1.25
TARGETS = {
    name: Target(figure=f"{name} with recovery, by {name} without + 1.6 ms", limit=1.25, at_most=True)
    for name in ("p50", "p99")
}
DOMAINS = tuple(stuck.STUCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`seconds` a run at `rate` rows a second, `stuck` rows a domain, `repeat` times A B B A."""

    seconds: float
    rate: float
    stuck: int
    repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: the waits, and what recovery did meanwhile (nothing where it was switched off)."""

    waits: dict[str, float]
    per_s: dict[str, float]
    database_share: dict[str, float]


def sections(side: Side) -> str:
    """The domains' sections of the configuration: at full speed, or switched off."""
    on = str(side == "ours").lower()
    lost = f'[queues.lost]\nstream = "{stuck.LOST_STREAM}"\n'
    return lost + "".join(
        f'[domains.{name}]\nenabled = {on}\ninterval = "200ms"\nbatch_size = 250\n' for name in DOMAINS
    )


def one_run(bench: Bench, side: Side, options: Options) -> Run:
    """One run of one side, with processes of its own."""
    stuck.fill(bench, options.stuck)
    rows = WARM_UP + round(options.seconds * options.rate)
    with ExitStack() as stack:
        arrivals = stack.enter_context(reader.started(bench, STREAMS["ours"], rows))
        supervisor = stack.enter_context(PfsupStart(bench, extra=sections(side)))
        before, began = stuck.settled(bench), time.monotonic()
        committed = commit_steadily(bench.pg_url, COMMITS["ours"], rows=rows, rate=options.rate)
        after, took_s = stuck.settled(bench), time.monotonic() - began
        shares = database_shares(supervisor.status() or {})
        held = arrivals.collect(within_s=60)
    per_s = {name: (after[name] - before.get(name, 0)) / took_s for name in after}
    return Run(waits=percentiles(waits_ms(committed, held, warm_up=WARM_UP)), per_s=per_s, database_share=shares)


def database_shares(status: dict[str, Any]) -> dict[str, float]:
    """The share of its newest cycle that each domain spent waiting for the database's answers."""
    children: list[dict[str, Any]] = status.get("children", [])
    told: dict[str, dict[str, Any]] = {child["name"]: child["figures"] for child in children}
    return {
        name: figures["database_s"] / max(0.2, figures["duration_s"])
        for name, figures in told.items()
        if name in DOMAINS and "duration_s" in figures
    }


def measure(bench: Bench, options: Options) -> Result:
    """Run everything and judge it."""
    stuck.install(bench)
    order = sequence(options.repeat)
    runs = [one_run(bench, side, options) for side in order]
    judged = {
        name: [run.waits[name] + (SLACK_MS if side == "bare" else 0) for side, run in zip(order, runs, strict=True)]
        for name in TARGETS
    }
    recovering = [run for side, run in zip(order, runs, strict=True) if side == "ours"]
    return Result(
        name="recovery",
        unit=f"ms at {options.rate:g} commits/s, {options.stuck:,} stuck rows a domain",
        order=order,
        runs=[run.waits for run in runs],
        verdicts=[judge(target, order, judged[name]) for name, target in TARGETS.items()],
        information={
            "settled a second": mean_of([run.per_s for run in recovering]),
            "share of a cycle in the database": mean_of([run.database_share for run in recovering]),
        },
    )


def mean_of(runs: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each name over the runs that have it."""
    names = sorted({name for run in runs for name in run})
    return {name: sum(run.get(name, 0.0) for run in runs) / len(runs) for name in names}


def bare_files() -> list[Path]:
    """The files that --show-bare prints: the other side is the same program with its domains switched off."""
    return [Path(stuck.__file__)]
