"""The database away for longer than a worker's lease: no healthy worker is taken for lost, one that is gone is."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from pfsup.domains.envelope import Envelope
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.gates import Gates
from support.link import TestLink, at_work
from support.messages import Stream, serving, stream_of
from support.recovery import domain_settings
from support.runs import Owner, owner_of, worker_of
from support.servers import PgServer
from support.waiting import HANG_S, auntil

TASKS = 20


@pytest.fixture
def stream(own_database: Database) -> Generator[Stream]:
    with owner_of(own_database) as owner, stream_of(own_database.redis_url, owner) as found:
        yield found


class Room:
    """Twenty tasks that stand inside their outside call until they are let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.let_go = asyncio.Event()

    async def paint(self, task: Task) -> None:
        async with task.effect():
            self.inside += 1
            await asyncio.wait_for(self.let_go.wait(), HANG_S)


def expire_all(owner: Owner) -> None:
    """As if the outage had been longer than every lease."""
    owner.rows(
        "UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 s',"
        " check_at = clock_timestamp() WHERE status = 'running'"
    )


async def test_healthy_workers_outlive_an_outage_longer_than_their_lease(
    own_database: Database, own_pg: PgServer, stream: Stream
):
    """With one look 19 of 20 became unknown (seen with a lease of 1 s and 2 s of outage); with two none."""
    room, gates = Room(), Gates()
    worker = Worker(
        database=own_database.worker_url, redis=own_database.redis_url, queues=["paint"], concurrency=TASKS, lease_s=1.0
    )
    worker.actor("paint")(room.paint)
    numbers = [stream.deliver() for _ in range(TASKS)]
    settings = domain_settings(own_database, "envelope", interval=0.1, takeover_grace=2.0)
    said = TestLink(name="envelope")
    async with serving(worker), at_work(Envelope(settings, "envelope", points=gates), said):
        await auntil(lambda: room.inside == TASKS, what="all tasks are inside their call")
        own_pg.restart()
        with owner_of(own_database) as owner:
            expire_all(owner)
            seen = gates.count("cycle")
            await gates.arrival("cycle", seen + 3)
            room.let_go.set()
            await auntil(lambda: {owner.status(number) for number in numbers} == {"consumed"}, what="all are done")
            assert owner.value("SELECT sum(recoveries) FROM pfsup.async_dispatches") == 0


async def test_worker_that_is_gone_after_an_outage_is_taken_for_lost(
    own_database: Database, own_pg: PgServer, stream: Stream
):
    number = stream.deliver()
    with worker_of(own_database) as worker:
        worker.begun(number)
    settings = domain_settings(own_database, "envelope", interval=0.1, takeover_grace=0.4)
    async with at_work(Envelope(settings, "envelope"), TestLink(name="envelope")):
        own_pg.restart()
        with owner_of(own_database) as owner:
            expire_all(owner)
            await auntil(lambda: owner.status(number) == "pending", what="the lost run is in line again")
