"""Workflow: silent nodes are judged by phase, runs sent out again or closed; the next run of a graph gets its turn."""

from __future__ import annotations

from typing import Any

import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.recovery import domain
from support.rows import Rows

pytestmark = pytest.mark.usefixtures("productflow")


def statuses(rows: Rows, run: str) -> list[str]:
    """The statuses of a run's nodes, by position."""
    found = rows.all("SELECT status FROM productflow.workflow_node_runs WHERE run_id = %s ORDER BY position", run)
    return [row.status for row in found]


async def decided(database: Database, **section: Any) -> dict[Decision, int]:
    """What two looks decided about everything that is there, the first looks of lost runs left out."""
    async with domain(database, "workflow", **section) as workflow:
        first = await workflow.run()
        return dict(first.decisions)


@pytest.mark.parametrize("phase", [None, "claimed", "prepared"])
async def test_a_silent_node_before_its_call_is_queued_again(
    productflow: Database, rows: Rows, phase: str | None
) -> None:
    """Its intents are void: no call began. The run keeps its place in the graph and is sent out again."""
    run = rows.workflow(status="running", lease_expires_at="ago 2 hours")
    node = rows.node(run, status="running", phase=phase)
    effect = rows.effect("workflow", node)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    was = rows.row("workflow_node_runs", node)
    assert (was.status, was.phase, was.attempt_id, was.started_at, was.progress_at) == (
        "queued",
        None,
        None,
        None,
        None,
    )
    assert rows.row("provider_effects", effect).state == "void"
    assert rows.row("workflow_runs", run).status == "running"
    assert rows.row("workflow_runs", run).lease_expires_at is None
    assert rows.envelope(f"workflow:{run}").status == "pending"
    assert rows.envelope(f"workflow:{run}").payload == {"run_id": run}
