"""Lost runs whose business row is over or gone: they get the row's end, whatever domain they are of."""

from __future__ import annotations

import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.recovery import Domain, domain
from support.rows import Rows, rows_of


async def looked_at_twice(delivery: Domain, rows: Rows) -> None:
    await delivery.run()
    rows.awake()
    delivery.clock.pass_(delivery.looks.grace_s + 1)
    await delivery.run()


@pytest.mark.parametrize(
    ("status", "becomes"), [("succeeded", "consumed"), ("failed", "consumed"), ("cancelled", "cancelled")]
)
async def test_lost_run_gets_the_end_of_its_row(productflow: Database, rows: Rows, status: str, becomes: str):
    """The worker stored its result and died before it settled, or the row was cancelled while it ran."""
    job = rows.delivery(status=status, envelope="lost")
    async with domain(productflow, "delivery") as delivery:
        await looked_at_twice(delivery, rows)
        assert (await delivery.run()).idle
    assert [row.status for row in rows.envelopes(f"delivery:{job}")] == [becomes]
    assert rows.row("delivery_jobs", job).status == status


async def test_lost_run_of_a_row_that_is_gone_is_cancelled(productflow: Database, rows: Rows):
    rows.stand_for("delivery:no-such-row", "lost")
    async with domain(productflow, "delivery") as delivery:
        await looked_at_twice(delivery, rows)
    assert [row.status for row in rows.envelopes("delivery:no-such-row")] == ["cancelled"]


async def test_unproved_effect_is_unknown_whatever_the_row_says(productflow: Database, rows: Rows):
    job = rows.delivery(status="succeeded", envelope="lost")
    rows.all("UPDATE pfsup.async_dispatches SET effect = 'begun'")
    async with domain(productflow, "delivery") as delivery:
        await looked_at_twice(delivery, rows)
    assert [row.status for row in rows.envelopes(f"delivery:{job}")] == ["unknown"]


async def test_wish_for_a_later_run_is_kept_when_the_run_ends(productflow: Database, rows: Rows):
    """The application queued the job again while its old run was lost."""
    job = rows.delivery(status="succeeded", envelope="lost")
    rows.all("SELECT pfsup.stage('delivery', %s, NULL, NULL, %s)", job, f"delivery:{job}")
    async with domain(productflow, "delivery") as delivery:
        await looked_at_twice(delivery, rows)
    assert [row.status for row in rows.envelopes(f"delivery:{job}")] == ["consumed", "pending"]


async def test_run_of_an_open_row_is_judged_with_the_row_once(productflow: Database, rows: Rows):
    rows.delivery(status="running", envelope="lost")
    async with domain(productflow, "delivery") as delivery:
        first = await delivery.run()
    assert first.decisions == {Decision.STILL_RUNNING: 1}


async def test_live_run_of_a_finished_row_is_its_workers(productflow: Database, rows: Rows):
    """It may be about to settle."""
    rows.delivery(status="succeeded", envelope="alive")
    rows.all("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp() - interval '1 s'")
    async with domain(productflow, "delivery") as delivery:
        assert (await delivery.run()).idle


async def test_lost_run_of_a_row_that_no_machine_may_retry_is_unknown(productflow: Database, rows: Rows):
    job = rows.delivery(status="running", is_retryable=False, envelope="lost")
    async with domain(productflow, "delivery") as delivery:
        await looked_at_twice(delivery, rows)
    assert [row.status for row in rows.envelopes(f"delivery:{job}")] == ["unknown"]
    assert rows.row("delivery_jobs", job).status == "running"


async def test_lost_run_of_an_answered_turn_is_judged_with_the_turn(productflow: Database, rows: Rows):
    """Its worker holds the turn's lock this moment, so the turn itself is passed over."""
    turn = rows.turn(owner="w1", status="requires_input", phase="claimed", answer={"yes": True}, envelope="lost")
    with rows_of(productflow) as holder, holder.conn.transaction():
        holder.all("SELECT FROM productflow.agent_turns WHERE id = %s FOR NO KEY UPDATE", turn)
        async with domain(productflow, "agent") as agent:
            await looked_at_twice(agent, rows)
            rows.awake()
            await agent.run()
    assert [row.status for row in rows.envelopes(f"agent:{turn}")] == ["running"]
