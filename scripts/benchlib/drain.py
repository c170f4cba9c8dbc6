"""How fast a backlog leaves: pfsup's dispatch against a bare sequential claim, XADD, mark loop.

Both processes are up and idle; then all rows become due at once (ours: one commit; bare: a line on its standard input).
The same observer sees the end: the stream holds every row, and no row is left unmarked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from . import bare_drain
from .broker import open_redis
from .figures import Side, Target, judge, sequence
from .report import Result
from .servers import Bench, PfsupStart

TARGET = Target(figure="drain, rows/s", limit=0.7, at_most=False)
QUEUE = "render"
STREAMS: Mapping[Side, str] = {"ours": f"pfsup:bench:{QUEUE}", "bare": "bare:backlog"}
LEFT: Mapping[Side, bytes] = {
    "ours": b"SELECT count(*) FROM pfsup.async_dispatches WHERE status = 'pending'",
    "bare": b"SELECT count(*) FROM bare.backlog WHERE status = 'pending'",
}
FILL: Mapping[Side, bytes] = {
    "ours": b"SELECT count(*) FROM generate_series(1, %s) n, pfsup.stage('render', 'order-' || n, '{\"n\": 1}')",
    "bare": b"INSERT INTO bare.backlog (actor, aggregate, payload)"
    b" SELECT 'render', 'order-' || n, '{\"n\": 1}' FROM generate_series(1, %s) n",
}
TABLES: Mapping[Side, bytes] = {"ours": b"pfsup.async_dispatches", "bare": b"bare.backlog"}
HANG_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`rows` a run, `repeat` times A B B A."""

    rows: int
    repeat: int


def fill(bench: Bench, side: Side, rows: int) -> float:
    """Commit all rows at once; return the moment at which the commit began.

    ANALYZE, because the bare claim sorts the whole backlog under stale statistics (11,000 rows/s instead of 31,000).
    """
    with psycopg.connect(bench.pg_url) as conn:
        conn.execute(FILL[side], [rows])
        conn.execute(b"ANALYZE " + TABLES[side])
        began = time.monotonic()
        conn.commit()
    return began


def wait_until_sent(bench: Bench, side: Side, rows: int) -> float:
    """Watch until every row is in the stream and marked; return that moment. RuntimeError after 5 minutes."""
    tick, deadline = threading.Event(), time.monotonic() + HANG_S
    with open_redis(bench.redis_url) as client, psycopg.connect(bench.pg_url, autocommit=True) as conn:
        while time.monotonic() < deadline:
            if int(str(client.xlen(STREAMS[side]))) >= rows:
                left = conn.execute(LEFT[side], prepare=True).fetchone()
                if left == (0,):
                    return time.monotonic()
            tick.wait(0.002)
    raise RuntimeError(f"cannot measure: not every row of {rows} was sent within {HANG_S:g} s")


def ours(bench: Bench, rows: int) -> float:
    """Rows per second of pfsup's dispatch."""
    with PfsupStart(bench):
        began = fill(bench, "ours", rows)
        return rows / (wait_until_sent(bench, "ours", rows) - began)


def bare(bench: Bench, rows: int) -> float:
    """Rows per second of the bare loop."""
    argv = [bare_drain.__file__, bench.pg_url, bench.redis_url, STREAMS["bare"]]
    with bench.program("bare", argv) as loop:
        loop.expect("ready", within_s=30)
        fill(bench, "bare", rows)
        began = time.monotonic()
        loop.say("go")
        return rows / (wait_until_sent(bench, "bare", rows) - began)


def one_run(bench: Bench, side: Side, rows: int) -> float:
    """One run of one side on empty tables, with processes of its own."""
    bench.empty("pfsup.async_dispatches", "bare.backlog")
    bench.flush()
    return ours(bench, rows) if side == "ours" else bare(bench, rows)


def measure(bench: Bench, options: Options) -> Result:
    """Run everything and judge it."""
    bench.execute(bare_drain.TABLE)
    order = sequence(options.repeat)
    rates = [one_run(bench, side, options.rows) for side in order]
    return Result(
        name="drain",
        unit=f"rows/s, {options.rows} due rows",
        order=order,
        runs=[{"rate": rate} for rate in rates],
        verdicts=[judge(TARGET, order, rates)],
    )


def bare_files() -> list[Path]:
    """The files that --show-bare prints."""
    return [Path(bare_drain.__file__)]
