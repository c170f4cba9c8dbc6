"""Delivery: a stuck job is started again, whatever stuck it; never unknown."""

from __future__ import annotations

import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.recovery import domain
from support.rows import Rows

pytestmark = pytest.mark.usefixtures("productflow")


async def test_queued_job_without_an_envelope_gets_one(productflow: Database, rows: Rows) -> None:
    """A dual write that lost its second half: the row is there, nobody was told."""
    job = rows.delivery(status="queued", envelope=None)
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert report.decisions == {Decision.REDISPATCH: 1}
    assert rows.envelope(f"delivery:{job}").status == "pending"
