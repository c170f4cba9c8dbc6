"""Agent's statements at 100,000 turns and tasks, 99 % of them ended: through indexes, never from end to end."""

from __future__ import annotations

from pfsup.domains.business import domain_queries
from support.database import Database
from support.plans import MODES, indexes, plan, sequential
from support.rows import Rows

BIG = (
    *("agent_turns", "agent_tasks", "agent_turn_events", "agent_conversations", "provider_effects"),
    *("async_dispatches", "recovery_ledger"),
)
SAID = {
    "domain": "agent",
    "stale_s": 1800.0,
    "after_at": "-infinity",
    "after_id": "",
    "page": 104,
    "most": 26,
    "end": "unknown",
    "reason": "why",
    "turn_id": "200",
    "task_id": "201",
}
THROUGH = {
    "find_expired": ("agent_turns", {"agent_turns_owned"}),
    "find_unstarted": ("agent_tasks", {"agent_tasks_queued"}),
    "find_unbound": ("agent_turns", {"agent_turns_open"}),
    "recheck_turn": ("agent_turns", {"agent_turns_pkey"}),
    "recheck_task": ("agent_turns", {"agent_turns_key"}),
    "lock_effects": ("provider_effects", {"provider_effects_owner"}),
    "interrupt": ("agent_turn_events", {"agent_turn_events_pkey"}),
    "append_unknown": ("agent_turn_events", {"agent_turn_events_pkey"}),
    "reconcile": ("provider_effects", {"provider_effects_owner"}),
    "end_task_of_turn": ("agent_tasks", {"agent_tasks_pkey"}),
    "make_first_turn": ("agent_tasks", {"agent_tasks_pkey"}),
}


def fill(rows: Rows) -> None:
    """Each turn with its task, three events, an effect, an envelope and a past; of 200 one is owned and one queued."""
    rows.all("INSERT INTO productflow.agent_conversations (id) SELECT 'c' || n FROM generate_series(1, 10000) AS n")
    rows.all(
        "INSERT INTO productflow.agent_tasks (id, conversation_id, status, created_at)"
        " SELECT n::text, 'c' || mod(n, 10000), CASE WHEN mod(n, 200) IN (1, 2) THEN 'queued' ELSE 'succeeded' END,"
        " clock_timestamp() - n * interval '1 s' FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO productflow.agent_turns (id, conversation_id, task_id, key, status, owner, lease_expires_at,"
        " created_at) SELECT id, conversation_id, id, 'initial:' || conversation_id || ':' || id,"
        " CASE mod(id::int, 200) WHEN 0 THEN 'running' WHEN 1 THEN 'queued' ELSE 'succeeded' END,"
        " CASE mod(id::int, 200) WHEN 0 THEN 'w1' END, CASE mod(id::int, 200) WHEN 0 THEN created_at END, created_at"
        " FROM productflow.agent_tasks WHERE mod(id::int, 200) <> 2"
    )
    rows.all(
        "INSERT INTO productflow.agent_turn_events (turn_id, seq, kind)"
        " SELECT id, n, CASE n WHEN 1 THEN 'begun' WHEN 2 THEN 'effect_done' ELSE 'turn_succeeded' END"
        " FROM productflow.agent_turns, generate_series(1, 3) AS n WHERE n < 3 OR status = 'succeeded'"
    )
    rows.all(
        "INSERT INTO productflow.provider_effects (domain, owner_id, state)"
        " SELECT 'agent', id, 'applied' FROM productflow.agent_turns"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
        " SELECT 'agent', 'agent', id, 'agent:' || id FROM productflow.agent_turns"
    )
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)"
        " SELECT 'agent', id, clock_timestamp() FROM productflow.agent_turns"
    )
    rows.all("VACUUM ANALYZE")


def test_statements_read_no_big_table_from_end_to_end(productflow: Database, rows: Rows) -> None:
    """The texts as loaded, prepared, with custom and with generic plans."""
    fill(rows)
    queries = domain_queries("pfsup.domains.agent", schema="pfsup", productflow="productflow")
    for name, (table, through) in THROUGH.items():
        said = SAID | {"id": "task:201" if name == "recheck_task" else "200"}
        for mode in MODES:
            steps = plan(productflow, queries[name], said, mode=mode)
            assert sequential(steps, *BIG) == [], (name, mode)
            assert through <= indexes(steps, table), (name, mode, indexes(steps, table))
            if name.startswith("find"):
                assert not [step for step in steps if step.kind == "Hash Join"], (name, mode)
    what = b"SELECT id FROM productflow.agent_turns_needing_worker WHERE id = %(turn_id)s"
    for mode in MODES:
        assert sequential(plan(productflow, what, SAID, mode=mode), *BIG) == [], mode
