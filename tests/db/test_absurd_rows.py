"""Rows and ledger lines with absurd values get a decision, or sleep for a while: never a crash, never a stuck batch."""

from __future__ import annotations

import pytest
from pfsup.shared.frames import encode
from support.database import Database
from support.recovery import domain
from support.rows import Rows

ABSURD_TIMES = ("infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "20000-01-01 00:00:00+00")


def insert(rows: Rows, kind: str, at: str) -> list[str]:
    """One stuck row of each kind of candidate, its times all at `at`; their ids."""
    match kind:
        case "delivery":
            return [rows.delivery(created_at=at)]
        case "local_edit":
            return [rows.local_edit(created_at=at)]
        case "image_session":
            return [rows.image_task(created_at=at)]
        case "workflow":
            return [rows.workflow(created_at=at), rows.workflow(status="running", started_at=at, progress_at=at)]
        case _:
            return [rows.turn(created_at=at), rows.agent_task(created_at=at)]


@pytest.mark.parametrize("at", ABSURD_TIMES)
@pytest.mark.parametrize("kind", ["delivery", "local_edit", "image_session", "workflow", "agent"])
async def test_row_with_a_time_that_python_cannot_hold_is_recovered(
    productflow: Database, rows: Rows, kind: str, at: str
):
    """Two cycles: the first page's end, an absurd time, is where a cursor stands."""
    made = insert(rows, kind, at)
    async with domain(productflow, kind) as subject:
        first, second = await subject.run(), await subject.run()
    assert (first.examined, first.errors, second.errors) == (len(made), [], [])
    assert encode(first.figures(10.0)), "the report has no figure that JSON has not"
    assert rows.one("SELECT count(*) FROM pfsup.live_envelopes").count == len(made)


async def test_expired_turn_with_an_infinite_lease_end_is_collected(productflow: Database, rows: Rows):
    turn = rows.turn(owner="w1", lease_expires_at="-infinity")
    async with domain(productflow, "agent") as agent:
        await agent.run()
    assert rows.row("agent_turns", turn).owner is None
