"""Finding candidates among 1,000,000 rows of which 10,000 are stuck, against a table that holds those 10,000 alone.

And once with 100,000 more that sleep in the ledger, in front. What runs is the text from its file, prepared, as
the domain runs it: the first page, and larger ones while no batch is full.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
from pfsup.config import values
from pfsup.domains import delivery
from pfsup.domains.business import subject
from pfsup.domains.cycle import Cycle
from pfsup.domains.looks import Looks
from pfsup.domains.loop import recovery_pool
from pfsup.domains.report import Report
from pfsup.domains.session import Session

from . import stuck
from .figures import Side, Target, judge, sequence
from .report import Result
from .servers import Bench

TARGET = Target(figure="finding a batch among all rows, by among the stuck ones alone", limit=2.0, at_most=True)
CYCLES = 15
BATCH = 25

FILL = b"""
    INSERT INTO productflow.delivery_jobs (id, status, created_at, finished_at)
    SELECT n::text, CASE WHEN n %% %(every)s = 0 THEN 'queued' ELSE 'succeeded' END,
           clock_timestamp() - interval '4 hours',
           CASE WHEN n %% %(every)s <> 0 THEN clock_timestamp() END
    FROM generate_series(1, %(rows)s::bigint) AS n"""
WAKE = b"UPDATE pfsup.recovery_ledger SET next_check_at = clock_timestamp() WHERE candidate_id NOT LIKE 'asleep%'"
SLEEP = b"""
    WITH jobs AS (
        INSERT INTO productflow.delivery_jobs (id, status, created_at)
        SELECT 'asleep ' || n, 'queued', clock_timestamp() - interval '9 hours' FROM generate_series(1, %(rows)s) AS n
        RETURNING id)
    INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)
    SELECT 'delivery', j.id, clock_timestamp() + interval '1 hour' FROM jobs AS j"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`rows` in the table, `stuck` of them candidates, `asleep` more in the ledger for one last figure."""

    rows: int
    stuck: int
    asleep: int
    repeat: int


def fill(bench: Bench, *, rows: int, candidates: int) -> None:
    """A table of `rows` deliveries, `candidates` of them stuck, the others finished."""
    bench.empty(*stuck.TABLES)
    with psycopg.connect(bench.pg_url, autocommit=True) as conn:
        conn.execute(FILL, {"rows": rows, "every": max(1, rows // candidates)})
        conn.execute(b"ANALYZE")


async def find_ms(bench: Bench, *, size: int = BATCH) -> float:
    """What finding and handing out one batch takes in ms: the median of cycles over the same candidates."""
    settings = values.Settings(
        database=values.Database(url=bench.pg_url), domains={"delivery": values.domain_of("delivery")}
    )
    whose = subject(settings, "delivery", package="pfsup.domains.delivery", table=delivery.TABLE)
    took_ms: list[float] = []
    async with recovery_pool(settings, "delivery", application_name="bench") as pool:
        cycle = Cycle(whose, delivery.PHASES, Session(pool, settings.database), Looks(5.0))
        for _ in range(CYCLES):
            began = time.monotonic()
            found = await cycle.find(delivery.PHASES[0], size, Report())
            took_ms.append((time.monotonic() - began) * 1000)
            if len(found) != size:
                raise RuntimeError(f"cannot measure: {len(found)} candidates were found, wanted {size}")
            async with pool.connection() as conn:
                await conn.execute(WAKE)
    return median(took_ms)


def one_run(bench: Bench, side: Side, options: Options) -> float:
    """One side: all rows, or a table of the stuck ones alone."""
    fill(bench, rows=options.rows if side == "ours" else options.stuck, candidates=options.stuck)
    return asyncio.run(find_ms(bench))


def behind_sleepers(bench: Bench, options: Options) -> float:
    """The same among all rows with `asleep` older candidates that sleep in the ledger."""
    fill(bench, rows=options.rows, candidates=options.stuck)
    with psycopg.connect(bench.pg_url, autocommit=True) as conn:
        conn.execute(SLEEP, {"rows": options.asleep})
        conn.execute(b"ANALYZE")
    return asyncio.run(find_ms(bench))


def measure(bench: Bench, options: Options) -> Result:
    """Run everything and judge it."""
    stuck.install(bench)
    order = sequence(options.repeat)
    runs = [one_run(bench, side, options) for side in order]
    return Result(
        name="discovery",
        unit=f"ms to find {BATCH} of {options.stuck:,} candidates among {options.rows:,} rows",
        order=order,
        runs=[{"find_ms": run} for run in runs],
        verdicts=[judge(TARGET, order, runs)],
        information={f"behind {options.asleep:,} asleep, ms": behind_sleepers(bench, options)},
    )


def bare_files() -> list[Path]:
    """The files that --show-bare prints: the other side is the same statement over a smaller table."""
    return [Path(__file__)]
