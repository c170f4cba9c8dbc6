"""What stage() costs its caller, against a bare INSERT; and what 32 producers reach with and without the trigger."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pfsup.supervisor.demo.waits import percentiles

from . import bare_stage
from .figures import Side, Target, judge, sequence
from .report import Result
from .servers import Bench

TARGET = Target(figure="stage() / bare INSERT, p50 of call and commit", limit=2.0, at_most=True)
STAGE = b"SELECT id, outcome, status FROM pfsup.stage(%(actor)s, %(aggregate)s, %(payload)s::jsonb)"
QUERIES: Mapping[Side, bytes] = {"ours": STAGE, "bare": bare_stage.INSERT}
SCRIPTS = {
    "bare INSERT": "INSERT INTO bare.envelopes (actor, queue, aggregate_id, payload)"
    " VALUES ('render', 'render', 'order-1', '{\"n\": 1}');",
    "stage()": "SELECT id FROM pfsup.stage('render', 'order-1', '{\"n\": 1}');",
}
CLIENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`rows` a run, `repeat` times A B B A, `seconds` for each throughput figure (0: none)."""

    rows: int
    repeat: int
    seconds: float


def calls_us(conn: psycopg.Connection[Any], query: bytes, rows: int) -> list[float]:
    """The time of each of `rows` calls on one connection, in microseconds; in autocommit that includes the commit."""
    took: list[float] = []
    for n in range(rows):
        params = {"actor": "render", "aggregate": f"order-{n}", "payload": '{"n": 1}'}
        began = time.perf_counter()
        conn.execute(query, params, prepare=True).fetchone()
        took.append((time.perf_counter() - began) * 1e6)
    return took


def one_run(bench: Bench, side: Side, rows: int) -> list[float]:
    """A run on a fresh connection and empty tables; the first calls (plans, caches) are not counted."""
    bench.empty("pfsup.async_dispatches", "bare.envelopes")
    with psycopg.connect(bench.pg_url, autocommit=True) as conn:
        calls_us(conn, QUERIES[side], 100)
        return calls_us(conn, QUERIES[side], rows)


def without_commit(bench: Bench, side: Side, rows: int) -> list[float]:
    """The same calls inside one transaction: what is left when the disk is taken out."""
    bench.empty("pfsup.async_dispatches", "bare.envelopes")
    with psycopg.connect(bench.pg_url) as conn:
        calls_us(conn, QUERIES[side], 100)
        return calls_us(conn, QUERIES[side], rows)


def commits_per_s(bench: Bench, script: str, *, seconds: float) -> float:
    """What pgbench reaches with 32 clients that each commit one call after the other."""
    path = bench.folder / "script.sql"
    path.write_text(script)
    bench.empty("pfsup.async_dispatches", "bare.envelopes")
    argv = ["-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T", str(max(1, round(seconds))), "-f", str(path)]
    said = subprocess.run(
        [str(bench.pg_bin / "pgbench"), *argv, bench.pg_url], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"tps = ([0-9.]+)", said)
    if found is None:
        raise RuntimeError(f"cannot read what pgbench said: {said[-400:]}")
    return float(found[1])


def throughput(bench: Bench, seconds: float) -> dict[str, float]:
    """Commits/s with 32 clients: bare, stage() without its trigger, stage() as it is."""
    figures = {"bare INSERT": commits_per_s(bench, SCRIPTS["bare INSERT"], seconds=seconds)}
    bench.execute("ALTER TABLE pfsup.async_dispatches DISABLE TRIGGER wake")
    try:
        figures["stage(), trigger off"] = commits_per_s(bench, SCRIPTS["stage()"], seconds=seconds)
    finally:
        bench.execute("ALTER TABLE pfsup.async_dispatches ENABLE TRIGGER wake")
    figures["stage()"] = commits_per_s(bench, SCRIPTS["stage()"], seconds=seconds)
    return figures


def measure(bench: Bench, options: Options) -> Result:
    """Run everything and judge it."""
    bench.execute(bare_stage.TABLE)
    order = sequence(options.repeat)
    runs = [one_run(bench, side, options.rows) for side in order]
    information: dict[str, object] = {}
    for side in QUERIES:
        information[f"{side}, inside one transaction, us"] = percentiles(without_commit(bench, side, options.rows))
    if options.seconds:
        information[f"commits/s, {CLIENTS} clients"] = throughput(bench, options.seconds)
    tables = [percentiles(run) for run in runs]
    return Result(
        name="stage",
        unit="us",
        order=order,
        runs=tables,
        verdicts=[judge(TARGET, order, [table["p50"] for table in tables])],
        information=information,
    )


def bare_files() -> list[Path]:
    """The files that --show-bare prints."""
    return [Path(bare_stage.__file__)]
