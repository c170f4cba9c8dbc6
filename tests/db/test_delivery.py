"""Delivery: a stuck job is started again, whatever stuck it; it is never unknown."""

from __future__ import annotations

from typing import Any

import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.recovery import domain
from support.rows import Rows
from support.runs import worker_of


@pytest.mark.parametrize("envelope", [None, "consumed"])
async def test_queued_job_without_a_live_envelope_gets_one(productflow: Database, rows: Rows, envelope: str | None):
    """A dual write that lost its second half; or a run that settled and forgot the job."""
    job = rows.delivery(status="queued", envelope=envelope)
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert report.decisions == {Decision.REDISPATCH: 1}
    made = rows.envelope(f"delivery:{job}")
    assert (made.status, made.actor, made.aggregate_id, made.payload) == ("pending", "delivery", job, {"job_id": job})
    line = rows.ledger("delivery", job)
    assert line is not None
    assert line.recoveries == 0, "merely waiting costs none of its recoveries"


@pytest.mark.parametrize("times", [{}, {"progress_at": None}, {"progress_at": None, "started_at": None}])
async def test_silent_run_without_an_envelope_is_started_again(
    productflow: Database, rows: Rows, times: dict[str, Any]
):
    """Null times count as silent: a running row that never said when it began is a ghost."""
    job = rows.delivery(status="running", attempt_id="a1", phase="rendering", **times)
    async with domain(productflow, "delivery") as delivery:
        await delivery.run()
    row = rows.row("delivery_jobs", job)
    assert (row.status, row.attempt_id, row.phase, row.progress_at) == ("queued", None, None, None)
    assert rows.envelope(f"delivery:{job}").status == "pending"


async def test_run_that_gave_a_sign_of_life_lately_is_no_candidate(productflow: Database, rows: Rows):
    job = rows.delivery(status="running", progress_at="ago 29 minutes")
    async with domain(productflow, "delivery") as delivery:
        assert (await delivery.run()).idle
    assert rows.row("delivery_jobs", job).status == "running"


@pytest.mark.parametrize("envelope", ["pending", "held", "sent", "alive"])
@pytest.mark.parametrize("status", ["queued", "running"])
async def test_job_whose_envelope_is_looked_after_is_no_candidate(
    productflow: Database, rows: Rows, envelope: str, status: str
):
    """In flight for longer than any threshold, but the worker beats: nobody touches it."""
    rows.delivery(status=status, envelope=envelope)
    async with domain(productflow, "delivery") as delivery:
        assert (await delivery.run()).idle


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_lost_run_is_taken_back_at_the_second_look_with_its_envelope(
    productflow: Database, rows: Rows, status: str
):
    """One transaction for job and envelope; the job counts the recovery, the envelope does not."""
    job = rows.delivery(status=status, envelope="lost")
    before = rows.envelope(f"delivery:{job}")
    async with domain(productflow, "delivery") as delivery:
        first = await delivery.run()
        rows.awake()
        delivery.clock.pass_(delivery.looks.grace_s + 1)
        second = await delivery.run()
    assert (first.decisions, second.decisions) == ({Decision.STILL_RUNNING: 1}, {Decision.REDISPATCH: 1})
    after = rows.envelope(f"delivery:{job}")
    assert (after.id, after.status, after.recoveries, after.lease_token) == (before.id, "pending", 0, None)
    assert rows.row("delivery_jobs", job).status == "queued"
    with worker_of(productflow) as worker, pytest.raises(Exception, match="no longer holds it"):
        worker.one("SELECT * FROM pfsup.settle(%s, %s, 'consumed')", before.id, before.lease_token)


@pytest.mark.parametrize("envelope", ["dead", "unknown"])
async def test_end_of_its_envelope_becomes_the_end_of_a_running_job(productflow: Database, rows: Rows, envelope: str):
    job = rows.delivery(status="running", envelope=envelope)
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert report.decisions == {Decision.GIVE_UP: 1}
    row = rows.row("delivery_jobs", job)
    assert (row.status, row.is_retryable) == ("failed", False)
    assert rows.envelope(f"delivery:{job}").last_error in row.error
    assert rows.envelope(f"delivery:{job}").status == envelope, "a person's retry still finds it"


async def test_queued_job_with_a_dead_envelope_waits_for_a_person(productflow: Database, rows: Rows):
    job = rows.delivery(status="queued", envelope="dead")
    async with domain(productflow, "delivery") as delivery:
        assert (await delivery.run()).idle
    assert len(rows.envelopes(f"delivery:{job}")) == 1


async def test_job_that_kills_its_worker_every_time_ends_failed(productflow: Database, rows: Rows):
    job = rows.delivery(status="running")
    ends: list[str] = []
    async with domain(productflow, "delivery", max_recoveries=2) as delivery:
        for _ in range(3):
            rows.all("UPDATE productflow.delivery_jobs SET status = 'running', progress_at = NULL WHERE id = %s", job)
            rows.all("UPDATE pfsup.async_dispatches SET status = 'consumed', finished_at = now(), sent_at = now()")
            rows.awake()
            await delivery.run()
            ends.append(rows.row("delivery_jobs", job).status)
    assert ends == ["queued", "queued", "failed"]
    assert "2 recoveries did not help" in rows.row("delivery_jobs", job).error


async def test_lost_run_over_its_recoveries_ends_with_its_envelope(productflow: Database, rows: Rows):
    job = rows.delivery(status="running", envelope="lost")
    async with domain(productflow, "delivery", max_recoveries=0) as delivery:
        await delivery.run()
        rows.awake()
        delivery.clock.pass_(delivery.looks.grace_s + 1)
        await delivery.run()
    assert rows.row("delivery_jobs", job).status == "failed"
    assert rows.envelope(f"delivery:{job}").status == "dead"


async def test_job_that_no_machine_may_retry_is_no_candidate(productflow: Database, rows: Rows):
    rows.delivery(status="queued", is_retryable=False)
    rows.delivery(status="running", is_retryable=False)
    async with domain(productflow, "delivery") as delivery:
        assert (await delivery.run()).idle


async def test_second_section_of_the_kind_has_an_actor_and_keys_of_its_own(productflow: Database, rows: Rows):
    job = rows.delivery(status="queued")
    async with domain(productflow, "delivery", name="exports", actor="export") as exports:
        await exports.run()
    assert rows.envelope(f"exports:{job}").actor == "export"


async def test_job_that_kills_its_worker_before_it_is_marked_running_is_capped_too(productflow: Database, rows: Rows):
    """It stays queued for ever otherwise, and costs a worker each time."""
    job = rows.delivery(status="queued", envelope="lost")
    async with domain(productflow, "delivery", max_recoveries=0) as delivery:
        await delivery.run()
        rows.awake()
        delivery.clock.pass_(delivery.looks.grace_s + 1)
        await delivery.run()
    assert rows.row("delivery_jobs", job).status == "failed"
