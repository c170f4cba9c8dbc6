"""The reference tables of ProductFlow: made once, legal rows only, the ghosts storable, each role what it needs."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pfsup.config.errors import SchemaError
from pfsup.shared.db.migrate import migrate
from pfsup.shared.db.migrations import Migration, reference_tables, script
from psycopg import errors
from support.database import Database
from support.productflow import install
from support.servers import LOGINS
from support.staging import in_threads

Connection = psycopg.Connection[Any]

ENDS = ("succeeded", "failed", "cancelled")
STATUSES = {
    "delivery_jobs": ("queued", "running", *ENDS),
    "local_edit_tasks": ("queued", "running", *ENDS, "unknown"),
    "image_tasks": ("queued", "running", *ENDS, "unknown"),
    "workflow_runs": ("queued", "running", *ENDS, "unknown"),
    "workflow_node_runs": ("queued", "running", *ENDS, "unknown", "skipped"),
    "agent_tasks": ("queued", "running", *ENDS, "unknown"),
    "agent_turns": (
        "queued",
        "running",
        "requires_input",
        "awaiting_confirmation",
        "cancel_requested",
        *ENDS,
        "unknown",
    ),
}
NEEDED = {  # what an insert must name beside the status
    "local_edit_tasks": {"request_hash": "h"},
    "workflow_runs": {"graph_id": "g"},
    "workflow_node_runs": {"run_id": "r", "node": "n"},
    "agent_tasks": {"conversation_id": "c"},
    "agent_turns": {"conversation_id": "c"},
}
RETRIED = ("delivery_jobs", "local_edit_tasks", "image_tasks")
OF_AGE = "coalesce(progress_at, started_at, created_at)"


@pytest.fixture
def owner(productflow: Database) -> Generator[Connection]:
    """A session of the tables' owner, autocommit."""
    with psycopg.connect(productflow.url, autocommit=True) as conn:
        yield conn


def insert(conn: Connection, table: str, **row: Any) -> None:
    given = NEEDED.get(table, {}) | row
    names, values = ", ".join(given), ", ".join(f"%({name})s" for name in given)
    conn.execute(f"INSERT INTO productflow.{table} ({names}) VALUES ({values})".encode(), given)


def steps(outbox: str = "pfsup") -> tuple[Migration, ...]:
    return reference_tables("productflow", outbox=outbox)


def tables(conn: Connection, schema: str = "productflow") -> set[str]:
    return {row[0] for row in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])}


def plan(conn: Connection, query: str) -> str:
    return "\n".join(row[0] for row in conn.execute(f"EXPLAIN (COSTS OFF) {query}".encode()))


def may(conn: Connection, role: str, table: str) -> set[str]:
    """What `role` may do with the table, of everything that can be granted."""
    kinds = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
    asked = "SELECT kind FROM unnest(%s::text[]) kind WHERE has_table_privilege(%s, %s, kind)"
    return {row[0] for row in conn.execute(asked.encode(), [list(kinds), role, f"productflow.{table}"])}


def test_first_run_makes_the_tables_and_the_second_nothing(database: Database) -> None:
    first, second = install(database), install(database)
    assert (first.before, first.after, first.applied) == (None, 1, ("0001 tables",))
    assert (second.before, second.applied, second.roles) == (1, (), False)


def test_another_schema_has_its_own_tables_and_book(database: Database) -> None:
    install(database)
    assert install(database, schema="shop_2").applied == ("0001 tables",)
    with psycopg.connect(database.url, autocommit=True) as conn:
        assert tables(conn, "shop_2") == tables(conn) > {"schema_migrations", *STATUSES}
        entered = conn.execute("SELECT has_schema_privilege('pfsup_run', 'shop_2', 'USAGE')").fetchone()
        found = conn.execute(
            "SELECT count(*) FROM pg_indexes WHERE schemaname = 'shop_2' AND indexdef LIKE '%productflow%'"
        ).fetchone()
    assert (entered, found) == ((True,), (0,))


def test_pfsup_beside_is_left_as_it_was(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as conn:
        before = tables(conn, "pfsup")
        install(database)
        assert tables(conn, "pfsup") == before


def test_no_placeholder_is_left_and_names_are_no_part_of_the_checksum() -> None:
    assert re.findall(r"@\w+@", script(steps("box"), "shop", roles=True)) == []
    assert "GRANT USAGE ON SCHEMA shop TO box_stage" in script(steps("box"), "shop", roles=True)
    assert [step.checksum for step in steps("box")] == [step.checksum for step in steps()]


def test_changed_text_is_reported_and_nothing_is_built_on_it(database: Database) -> None:
    install(database)
    edited = (replace(steps()[0], body="-- other"),)
    more = replace(steps()[0], version=2, name="more", body="CREATE TABLE @productflow@.more (id int);")
    assert migrate(database.url, schema="productflow", steps=edited).changed == ("0001 tables",)
    with pytest.raises(SchemaError, match="schema productflow: 0001 tables was applied with another text"):
        migrate(database.url, schema="productflow", steps=(*edited, more))
    assert migrate(database.url, schema="productflow", steps=(*steps(), more)).applied == ("0002 more",)


def test_many_at_once_apply_it_once(database: Database) -> None:
    reports = in_threads([lambda: install(database)] * 4)
    assert sorted(len(report.applied) for report in reports) == [0, 0, 0, 1]


def test_run_with_roles_grants_what_a_run_without_left_out(database: Database) -> None:
    migrate(database.url, schema="productflow", steps=steps(), roles=False)
    with psycopg.connect(database.url, autocommit=True) as conn:
        assert may(conn, "pfsup_run", "image_tasks") == set()
        assert install(database).roles
        assert may(conn, "pfsup_run", "image_tasks") == {"SELECT", "INSERT", "UPDATE"}
    assert not install(database).roles


def test_fixture_is_a_copy_with_everything_made(productflow: Database) -> None:
    assert install(productflow).applied == ()


def test_each_role_may_do_what_it_must_and_no_more(owner: Connection) -> None:
    for table in tables(owner):
        for ending in LOGINS.values():
            writes = ending in ("stage", "work", "run") and table != "schema_migrations"
            wanted = {"SELECT", "INSERT", "UPDATE"} if writes else {"SELECT"}
            assert may(owner, f"pfsup_{ending}", table) == wanted, (ending, table)


def test_recovery_locks_and_writes_a_row_that_the_application_made(productflow: Database) -> None:
    with psycopg.connect(productflow.app_url, autocommit=True) as app:
        insert(app, "image_tasks", id="7")
    with psycopg.connect(productflow.run_url) as run:
        run.execute("SELECT FROM productflow.image_tasks WHERE id = '7' FOR NO KEY UPDATE SKIP LOCKED")
        assert run.execute("UPDATE productflow.image_tasks SET status = 'unknown', is_retryable = false").rowcount == 1
        with pytest.raises(errors.InsufficientPrivilege):
            run.execute("DELETE FROM productflow.image_tasks")


def test_stranger_sees_nothing(productflow: Database) -> None:
    with productflow.superuser() as conn:
        conn.execute("CREATE ROLE t_stranger")
        try:
            conn.execute("SET ROLE t_stranger")
            with pytest.raises(errors.InsufficientPrivilege):
                conn.execute("SELECT FROM productflow.delivery_jobs")
        finally:
            conn.execute("RESET ROLE")
            conn.execute("DROP ROLE t_stranger")


@pytest.mark.parametrize("table", STATUSES)
def test_exactly_the_named_statuses_are_storable(owner: Connection, table: str) -> None:
    for count, status in enumerate(STATUSES[table]):
        own = {"run_id": str(count)} if table == "workflow_node_runs" else {}
        insert(owner, table, status=status, **own)
    for status in {"lost", "", "Queued", "skipped", "requires_input", "unknown"} - set(STATUSES[table]):
        with pytest.raises(errors.CheckViolation):
            insert(owner, table, status=status)


@pytest.mark.parametrize("table", STATUSES)
def test_open_row_has_no_end_and_ids_are_sound(owner: Connection, table: str) -> None:
    with pytest.raises(errors.CheckViolation):
        insert(owner, table, finished_at="now")
    for bad in ("", "a\nb", "x" * 201):
        with pytest.raises(errors.CheckViolation):
            insert(owner, table, id=bad)
    insert(owner, table, id="x" * 200, status="failed", finished_at="now", error="e" * 2000)
    with pytest.raises(errors.CheckViolation):
        insert(owner, table, error="e" * 2001)


def test_effect_states_are_the_named_and_pending_is_not_settled(owner: Connection) -> None:
    for state in ("pending", "applied", "unknown", "void"):
        insert(owner, "provider_effects", domain="agent", owner_id="7", state=state)
    for wrong in ({"state": "done"}, {"settled_at": "now"}, {"domain": "delivery"}, {"count": 0}, {"first_index": -1}):
        with pytest.raises(errors.CheckViolation):
            insert(owner, "provider_effects", **({"domain": "agent", "owner_id": "7"} | wrong))


def test_second_running_run_of_a_graph_is_refused(owner: Connection) -> None:
    insert(owner, "workflow_runs", status="running")
    insert(owner, "workflow_runs", status="running", graph_id="other")
    insert(owner, "workflow_runs", status="queued", id="next")
    with pytest.raises(errors.UniqueViolation, match="workflow_runs_one_running"):
        owner.execute("UPDATE productflow.workflow_runs SET status = 'running' WHERE id = 'next'")
    owner.execute("UPDATE productflow.workflow_runs SET status = 'succeeded' WHERE graph_id = 'g' AND id <> 'next'")
    owner.execute("UPDATE productflow.workflow_runs SET status = 'running' WHERE id = 'next'")


def test_second_end_of_a_turn_is_refused(owner: Connection) -> None:
    insert(owner, "agent_turn_events", turn_id="7", seq=1, kind="begun")
    insert(owner, "agent_turn_events", turn_id="7", seq=2, kind="turn_unknown")
    insert(owner, "agent_turn_events", turn_id="8", seq=1, kind="turn_succeeded")
    for kind in ("turn_succeeded", "turn_failed", "turn_cancelled", "turn_unknown"):
        with pytest.raises(errors.UniqueViolation, match="agent_turn_events_one_end"):
            insert(owner, "agent_turn_events", turn_id="7", seq=3, kind=kind)
    with pytest.raises(errors.UniqueViolation, match="agent_turn_events_pkey"):
        insert(owner, "agent_turn_events", turn_id="7", seq=2, kind="note")


def test_event_kind_that_looks_like_an_end_is_one_of_the_four(owner: Connection) -> None:
    insert(owner, "agent_turn_events", turn_id="7", seq=1, kind="of_my_own")
    for kind in ("turn_timeout", "Turn_failed", "", "a b"):
        with pytest.raises(errors.CheckViolation):
            insert(owner, "agent_turn_events", turn_id="7", seq=2, kind=kind)


def test_first_turn_of_a_task_exists_once(owner: Connection) -> None:
    key = f"initial:{'c' * 200}:{'t' * 200}"
    insert(owner, "agent_turns", key=key)
    with pytest.raises(errors.UniqueViolation, match="agent_turns_key"):
        insert(owner, "agent_turns", key=key)


def test_node_of_a_run_and_image_of_a_task_exist_once(owner: Connection) -> None:
    insert(owner, "workflow_node_runs")
    insert(owner, "image_candidates", task_id="7", candidate_index=0, ref="a")
    with pytest.raises(errors.UniqueViolation, match="workflow_node_runs_run"):
        insert(owner, "workflow_node_runs")
    with pytest.raises(errors.UniqueViolation, match="image_candidates_pkey"):
        insert(owner, "image_candidates", task_id="7", candidate_index=0, ref="b")


def test_ghosts_are_storable(owner: Connection) -> None:
    """Rows that went wrong in life: parents gone, null times and attempts, unknown phases, a counter that is ahead."""
    insert(owner, "workflow_node_runs", run_id="gone", status="running", phase="of another version")
    insert(owner, "workflow_runs", status="running")
    insert(owner, "image_candidates", task_id="gone", candidate_index=9, ref="a")
    insert(owner, "image_tasks", status="running", completed_candidates=9, requested_candidates=4)
    insert(owner, "delivery_jobs", status="running")
    insert(owner, "local_edit_tasks", status="running")
    insert(owner, "agent_turns", status="running", conversation_id="gone", task_id="gone", owner="w1")
    insert(owner, "agent_turn_events", turn_id="gone", seq=1, kind="turn_failed")
    insert(owner, "provider_effects", domain="workflow", owner_id="gone", attempt_id=None)


@pytest.fixture
def crowded(owner: Connection) -> Connection:
    """3,000 ended rows and 50 open ones in each table that recovery walks, and statistics of them."""
    for table in ("delivery_jobs", "local_edit_tasks", "image_tasks", "workflow_runs", "agent_tasks", "agent_turns"):
        needed = NEEDED.get(table, {})
        names = "".join(f", {name}" for name in needed)
        values = "".join(", n::text" for _ in needed)
        owner.execute(
            f"INSERT INTO productflow.{table} (status{names})"
            f" SELECT CASE WHEN n > 50 THEN 'succeeded' ELSE 'queued' END{values}"
            " FROM generate_series(1, 3050) n".encode()
        )
        owner.execute(f"ANALYZE productflow.{table}".encode())
    return owner


@pytest.mark.parametrize("table", RETRIED)
def test_oldest_open_rows_are_read_in_order_of_their_index(crowded: Connection, table: str) -> None:
    found = plan(
        crowded,
        f"SELECT id FROM productflow.{table} WHERE is_retryable AND status IN ('queued', 'running')"
        f" ORDER BY {OF_AGE}, id LIMIT 26 FOR NO KEY UPDATE SKIP LOCKED",
    )
    assert f"Index Scan using {table}_open" in found
    assert "Sort" not in found


@pytest.mark.parametrize(
    ("index", "query"),
    [
        (
            "workflow_runs_running",
            f"workflow_runs WHERE status = 'running' ORDER BY {OF_AGE}, id LIMIT 26",
        ),
        ("workflow_runs_one_running", "workflow_runs WHERE graph_id = '7' AND status = 'running'"),
        (
            "workflow_runs_waiting",
            "workflow_runs WHERE graph_id = '7' AND status = 'queued' ORDER BY created_at, id LIMIT 1",
        ),
        ("agent_tasks_queued", "agent_tasks WHERE status = 'queued' ORDER BY created_at, id LIMIT 26"),
        (
            "agent_turns_owned",
            "agent_turns WHERE owner IS NOT NULL AND coalesce(lease_expires_at, created_at) < now()"
            " ORDER BY coalesce(lease_expires_at, created_at), id LIMIT 26",
        ),
        (
            "agent_turns_open",
            "agent_turns WHERE owner IS NULL AND (status IN ('queued', 'running', 'cancel_requested')"
            " OR (status = 'requires_input' AND answer IS NOT NULL)) ORDER BY created_at, id LIMIT 26",
        ),
    ],
)
def test_question_of_recovery_is_served_by_its_index(crowded: Connection, index: str, query: str) -> None:
    found = plan(crowded, f"SELECT id FROM productflow.{query}")
    assert f" using {index} " in found
    assert "Sort" not in found
