"""Statements that every domain shares, delivery's and the envelope domain's: along indexes at 100,000 rows."""

from __future__ import annotations

import pytest
from pfsup.config import values
from pfsup.domains.business import subject
from pfsup.domains.delivery import TABLE
from support.database import Database
from support.plans import MODES, explained, indexes, plan, sequential
from support.recovery import domain_settings
from support.rows import Rows

BIG = ("delivery_jobs", "async_dispatches", "recovery_ledger")
SAID = {
    "domain": "delivery", "actor": "delivery", "stale_s": 1800.0, "after_at": "-infinity", "after_id": "",
    "page": 104, "most": 26, "reason": "why",
}  # fmt: skip
THROUGH = {
    "find": ("delivery_jobs", "delivery_jobs_open", "7"),
    "recheck": ("delivery_jobs", "delivery_jobs_pkey", "7"),
    "requeue": ("delivery_jobs", "delivery_jobs_pkey", "7"),
    "fail": ("delivery_jobs", "delivery_jobs_pkey", "7"),
    "find_orphans": ("async_dispatches", "async_dispatches_check", "run:7"),
    "recheck_orphan": ("async_dispatches", "async_dispatches_pkey", "run:7"),
}


def fill(rows: Rows, *, statistics: str) -> None:
    """100,000 jobs, 1 % of them open, each with an envelope that is sent and a line in the ledger."""
    if statistics == "stale":
        rows.all("ANALYZE")
    rows.all(
        "INSERT INTO productflow.delivery_jobs (id, status, created_at)"
        " SELECT n::text, CASE WHEN mod(n, 100) = 0 THEN 'queued' ELSE 'succeeded' END,"
        " clock_timestamp() - n * interval '1 s' FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches"
        " (actor, queue, aggregate_id, delivery_key, status, sent_at, sink_ref, check_at)"
        " SELECT 'delivery', 'delivery', n::text, 'delivery:' || n, 'sent', clock_timestamp() - interval '1 hour',"
        " 's 1-' || n, clock_timestamp() - interval '10 minutes' FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)"
        " SELECT 'delivery', n::text, clock_timestamp() FROM generate_series(1, 100000) AS n"
    )
    if statistics == "fresh":
        rows.all("VACUUM ANALYZE")


def test_statements_of_delivery_and_of_orphans_read_no_big_table_from_end_to_end(productflow: Database, rows: Rows):
    """The texts as loaded, prepared, with custom and with generic plans."""
    fill(rows, statistics="fresh")
    queries = subject(
        domain_settings(productflow, "delivery"), "delivery", package="pfsup.domains.delivery", table=TABLE
    ).queries
    for name, (table, index, candidate) in THROUGH.items():
        for mode in MODES:
            steps = plan(productflow, queries[name], SAID | {"id": candidate}, mode=mode)
            assert sequential(steps, *BIG) == [], (name, mode)
            assert index in indexes(steps, table), (name, mode)


@pytest.mark.parametrize("statistics", ["stale", "fresh"])
def test_envelope_domain_walks_the_index_of_what_is_outstanding(productflow: Database, rows: Rows, statistics: str):
    fill(rows, statistics=statistics)
    said = explained(productflow, "find_outstanding", (1000, f"{values.Domain().sent_grace} s", ["delivery"]))
    assert "Index Scan using async_dispatches_check" in said
    assert "Seq Scan on async_dispatches" not in said
    assert "Seq Scan on recovery_ledger" not in said
    due, _, _ = said.partition("CTE due")[2].partition("CTE paced")
    assert "Sort" not in due
