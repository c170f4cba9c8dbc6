"""Workflow's statements at 100,000 runs, 99 % of them ended: read through partial indexes, never from end to end."""

from __future__ import annotations

from pfsup.domains.business import domain_queries
from support.database import Database
from support.plans import MODES, gone_over, indexes, plan, sequential
from support.rows import Rows

RUNS, NODES = "workflow_runs", "workflow_node_runs"
BIG = (RUNS, NODES, "provider_effects", "async_dispatches", "recovery_ledger")
SAID = {"domain": "workflow", "stale_s": 1800.0, "after_at": "-infinity", "after_id": "", "page": 104, "most": 26}
THROUGH = {
    "find_runs": {"workflow_runs_running"},
    "find_waiting": {"workflow_runs_queued", "workflow_runs_one_running", "workflow_runs_waiting"},
    "recheck_run": {"workflow_runs_pkey"},
    "recheck_waiting": {"workflow_runs_pkey", "workflow_runs_one_running", "workflow_runs_waiting"},
}


def fill(rows: Rows) -> None:
    """100,000 runs with two nodes, an effect and an envelope each; 1 % open, of which half wait."""
    rows.all(
        "INSERT INTO productflow.workflow_runs (id, graph_id, status, created_at)"
        " SELECT n::text, CASE WHEN mod(n, 200) = 0 THEN 'r' || n ELSE 'g' || mod(n, 50) END, CASE mod(n, 200)"
        " WHEN 0 THEN 'running' WHEN 1 THEN 'queued' ELSE 'succeeded' END, clock_timestamp() - n * interval '1 s'"
        " FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO productflow.workflow_node_runs (id, run_id, node, status)"
        " SELECT r.id || '/' || n, r.id, 'n' || n, CASE WHEN r.status IN ('queued', 'running') THEN r.status"
        " ELSE 'succeeded' END FROM productflow.workflow_runs r, generate_series(1, 2) n"
    )
    rows.all(
        "INSERT INTO productflow.provider_effects (domain, owner_id, state)"
        " SELECT 'workflow', id, 'applied' FROM productflow.workflow_node_runs WHERE node = 'n1'"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
        " SELECT 'workflow', 'workflow', id, 'workflow:' || id FROM productflow.workflow_runs"
    )
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)"
        " SELECT 'workflow', id, clock_timestamp() FROM productflow.workflow_runs"
    )
    rows.all("VACUUM ANALYZE")


def test_finders_and_rereads_read_no_big_table_from_end_to_end(productflow: Database, rows: Rows):
    """The texts as loaded, prepared, with custom and with generic plans."""
    fill(rows)
    queries = domain_queries("pfsup.domains.workflow", schema="pfsup", productflow="productflow")
    for name, through in THROUGH.items():
        for mode in MODES:
            steps = plan(productflow, queries[name], SAID | {"id": "4800"}, mode=mode)
            assert sequential(steps, *BIG) == [], (name, mode)
            assert through <= indexes(steps, RUNS), (name, mode)


def test_page_of_waiting_runs_is_gone_over_once(productflow: Database, rows: Rows):
    """Runs of as many graphs, each with its envelope: a page compared with itself took 3 s a cycle at 12,000."""
    rows.all(
        "INSERT INTO productflow.workflow_runs (id, graph_id)"
        " SELECT 'r' || n, 'g' || n FROM generate_series(1, 12000) AS n"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
        " SELECT 'workflow', 'workflow', id, 'workflow:' || id FROM productflow.workflow_runs"
    )
    queries = domain_queries("pfsup.domains.workflow", schema="pfsup", productflow="productflow")
    params = SAID | {"actor": "workflow", "page": 2000}
    assert gone_over(productflow, queries["find_waiting"], params) <= 4000
