"""What a worker writes between a re-read's snapshot and its lock is seen: other tables are read under the lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.gates import Gates
from support.recovery import domain
from support.rows import Rows
from support.waiting import auntil

DOOR = 4711  # the key of an advisory lock: while somebody holds it, nobody gets past the scan of the table


def build_door(rows: Rows, table: str) -> None:
    """A policy that waits at the door: after the statement's snapshot, before it locks the row."""
    rows.all(
        "CREATE FUNCTION productflow.door() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM pg_advisory_lock_shared({DOOR}), pg_advisory_unlock_shared({DOOR}); RETURN true; END $$"
    )
    rows.all("GRANT EXECUTE ON FUNCTION productflow.door() TO pfsup_run")
    rows.all(f"ALTER TABLE productflow.{table} ENABLE ROW LEVEL SECURITY")
    rows.all(f"CREATE POLICY door ON productflow.{table} USING (productflow.door())")


def local_edit(rows: Rows) -> tuple[str, str, str]:
    """The table to lock, a silent row before its call, and who owns its effects."""
    edit = rows.local_edit(status="running", phase="claimed", attempt_id="a1")
    return "local_edit_tasks", edit, edit


def workflow(rows: Rows) -> tuple[str, str, str]:
    run = rows.workflow(status="running")
    return "workflow_runs", run, rows.node(run, status="running", phase="claimed")


def image_session(rows: Rows) -> tuple[str, str, str]:
    task = rows.image_task(status="running", phase="running", active_attempt_id="a1")
    return "image_tasks", task, task


def agent(rows: Rows) -> tuple[str, str, str]:
    turn = rows.turn(owner="w1", status="running", phase="claimed")
    return "agent_turns", turn, turn


@pytest.mark.parametrize("made", [local_edit, workflow, image_session, agent])
async def test_call_that_begins_while_its_row_is_being_locked_is_not_repeated(
    productflow: Database, rows: Rows, made: Callable[[Rows], tuple[str, str, str]]
):
    """The worker holds the row, writes its intent into the journal and commits; the row itself stays as it was."""
    table, row, owner = made(rows)
    build_door(rows, table)
    gates = Gates()
    gates.hold(recheck := {"workflow": "recheck_run", "agent": "recheck_turn"}.get(made.__name__, "recheck"))
    async with domain(productflow, made.__name__, points=gates) as subject:
        cycle = asyncio.create_task(subject.run())
        await gates.arrival(recheck)
        rows.all("SELECT pg_advisory_lock(%s)", DOOR)
        gates.open(recheck)
        await auntil(lambda: waiting(rows), what="the re-read stands at the door")
        with psycopg.connect(productflow.url) as worker:
            worker.execute(f"SELECT FROM productflow.{table} WHERE id = %s FOR UPDATE".encode(), [row])
            worker.execute(
                "INSERT INTO productflow.provider_effects (domain, owner_id, attempt_id, state)"
                " VALUES (%s, %s, 'a1', %s)",
                [made.__name__, owner, "unknown" if made is workflow else "pending"],
            )
        rows.all("SELECT pg_advisory_unlock(%s)", DOOR)
        report = await cycle
    assert report.decisions == {Decision.OUTCOME_UNKNOWN: 1}


def waiting(rows: Rows) -> bool:
    """Whether somebody stands at the door."""
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
    return rows.one(query, DOOR).count == 1
