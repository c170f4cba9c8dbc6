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


def note_absurdly(rows: Rows, job: str, **columns: str) -> None:
    """A line of the ledger as no cycle writes it."""
    names, places = ", ".join(columns), ", ".join(["%s"] * len(columns))
    query = f"INSERT INTO pfsup.recovery_ledger (domain, candidate_id, {names}) VALUES ('delivery', %s, {places})"
    rows.all(query, job, *columns.values())


async def test_ledger_line_whose_counters_are_full_ends_no_hand_out(productflow: Database, rows: Rows):
    """The neighbour is recovered, and the row itself comes to a decision."""
    job, neighbour = rows.delivery(), rows.delivery()
    full = str(2**31 - 1)
    note_absurdly(rows, job, checks=full, recoveries=full, locked=full, next_check_at="-infinity")
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert (report.examined, report.errors) == (2, [])
    assert rows.envelope(f"delivery:{neighbour}").status == "pending"
    assert rows.envelope(f"delivery:{job}").status == "pending"


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"next_check_at": "9999-01-01", "updated_at": "2020-01-01"}, id="an hour is over"),
        pytest.param({"next_check_at": "2101-01-01", "updated_at": "2100-12-31"}, id="written in the future"),
        pytest.param({"next_check_at": "infinity", "updated_at": "infinity"}, id="for ever"),
    ],
)
async def test_no_line_of_a_clock_that_was_ahead_hides_its_candidate(
    productflow: Database, rows: Rows, columns: dict[str, str]
):
    job = rows.delivery()
    note_absurdly(rows, job, **columns)
    async with domain(productflow, "delivery") as delivery:
        await delivery.run()
    assert rows.envelope(f"delivery:{job}").status == "pending"
