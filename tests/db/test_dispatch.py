"""Dispatch as a role, on real servers: rows that are committed reach their stream."""

from __future__ import annotations

from pfsup.domains.dispatch import Dispatch
from support.database import Database
from support.link import TestLink, at_work
from support.outbox import leased, stage, statuses
from support.waiting import auntil


async def test_dispatch_sends_what_is_committed_and_marks_it(database: Database):
    link = TestLink()
    async with at_work(Dispatch(database.settings(), "dispatch"), link):
        stage(database, count=250)
        await auntil(lambda: statuses(database) == {"sent": 250})
    assert leased(database) == 0
