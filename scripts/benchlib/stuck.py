"""Rows that recovery has to settle, some thousands of each domain, as a crash leaves them."""

from __future__ import annotations

import psycopg
from pfsup.shared.db.migrate import migrate
from pfsup.shared.db.migrations import reference_tables

from .broker import open_redis
from .servers import Bench

LOST_STREAM = "bench:lost"
TABLES = (
    "pfsup.async_dispatches", "pfsup.recovery_ledger", "pfsup.audit_log", "productflow.delivery_jobs",
    "productflow.local_edit_tasks", "productflow.image_tasks", "productflow.image_candidates",
    "productflow.provider_effects", "productflow.workflow_runs", "productflow.workflow_node_runs",
    "productflow.agent_turns", "productflow.agent_turn_events", "productflow.agent_tasks",
)  # fmt: skip

PAST = (
    b"CREATE OR REPLACE TEMPORARY VIEW past AS"
    b" SELECT clock_timestamp() - interval '3 hours' AS began, clock_timestamp() - interval '4 hours' AS created"
)

# One statement a domain; %(rows)s rows each. Half of the three simple ones are queued without an envelope, half are
# running and silent.
STUCK = {
    "delivery": """
        INSERT INTO productflow.delivery_jobs (id, status, started_at, created_at)
        SELECT n::text, CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'running' END,
               CASE WHEN n %% 2 = 1 THEN past.began END, past.created
        FROM generate_series(1, %(rows)s) AS n, past""",
    "local_edit": """
        INSERT INTO productflow.local_edit_tasks (id, status, phase, request_hash, started_at, created_at)
        SELECT n::text, CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'running' END,
               CASE WHEN n %% 4 = 1 THEN 'claimed' WHEN n %% 4 = 3 THEN 'provider_call' END, 'h',
               CASE WHEN n %% 2 = 1 THEN past.began END, past.created
        FROM generate_series(1, %(rows)s) AS n, past""",
    "image_session": """
        INSERT INTO productflow.image_tasks (id, status, phase, active_attempt_id, started_at, created_at)
        SELECT n::text, CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'running' END,
               CASE WHEN n %% 2 = 1 THEN 'running' END, CASE WHEN n %% 2 = 1 THEN 'a' END,
               CASE WHEN n %% 2 = 1 THEN past.began END, past.created
        FROM generate_series(1, %(rows)s) AS n, past""",
    "workflow": """
        WITH runs AS (
            INSERT INTO productflow.workflow_runs (id, graph_id, status, started_at, created_at)
            SELECT n::text, n::text, 'running', past.began, past.created
            FROM generate_series(1, %(rows)s) AS n, past
            RETURNING id)
        INSERT INTO productflow.workflow_node_runs (run_id, node, status, phase, started_at)
        SELECT r.id, 'render', 'running', 'claimed', past.began FROM runs AS r, past""",
    "agent": """
        INSERT INTO productflow.agent_turns (id, conversation_id, status, created_at)
        SELECT n::text, 'c' || n, 'queued', past.created
        FROM generate_series(1, %(rows)s) AS n, past""",
    # Sent ten minutes ago; the stream is in order and has no such entry.
    "envelope": f"""
        INSERT INTO pfsup.async_dispatches
            (actor, queue, aggregate_id, status, sent_at, sink_ref, check_at, deliveries, staged_at)
        SELECT 'lost', 'lost', n::text, 'sent', clock_timestamp() - interval '10 minutes', '{LOST_STREAM} 1-' || n,
               clock_timestamp(), 1, clock_timestamp() - interval '11 minutes'
        FROM generate_series(1, %(rows)s) AS n, past""",
}


def install(bench: Bench) -> None:
    """The reference tables, beside pfsup's own."""
    migrate(bench.pg_url, schema="productflow", steps=reference_tables("productflow", outbox="pfsup"))


def fill(bench: Bench, rows: int) -> None:
    """Empty everything and make `rows` stuck rows a domain."""
    bench.empty(*TABLES)
    bench.flush()
    with open_redis(bench.redis_url) as client:
        client.xadd(LOST_STREAM, {"v": "1"}, id="2-1")
        client.xgroup_create(LOST_STREAM, "pfsup", id="$")
    with psycopg.connect(bench.pg_url, autocommit=True) as conn:
        conn.execute(PAST)
        for statement in STUCK.values():
            conn.execute(statement.encode(), {"rows": rows})
        conn.execute(b"ANALYZE")


def settled(bench: Bench) -> dict[str, int]:
    """How many decisions each domain has written so far."""
    with psycopg.connect(bench.pg_url, autocommit=True) as conn:
        query = b"SELECT domain, count(*) FROM pfsup.audit WHERE kind = 'recovery' GROUP BY domain"
        rows = conn.execute(query).fetchall()
    return {str(domain): int(count) for domain, count in rows}
