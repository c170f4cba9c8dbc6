"""SIGKILL at each boundary of dispatch: the row is delivered again, one worker gets in, nothing is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pfsup.config import values
from pfsup.config.values import Settings
from pfsup.domains.dispatch import Dispatch
from support.database import Database
from support.dispatcher import kill, stopped_at
from support.link import TestLink, at_work
from support.outbox import column, leased, stage, statuses
from support.servers import redis_client
from support.waiting import auntil

STREAM = "pfsup:pfsup:mail"
ROWS = 20


def patient(database: Database) -> Settings:
    """Nothing but the start itself finds a row within the hour, and no lease runs out."""
    return database.settings(dispatch=values.Dispatch(scan_interval=3600.0, wake="poll", claim_lease=600.0))


def delivered(database: Database) -> Counter[int]:
    with redis_client(database.redis_url) as client:
        return Counter(int(fields["dispatch_id"]) for _, fields in client.xrange(STREAM))


def begin_every_entry(database: Database) -> list[tuple[int, str]]:
    """What begin_work says to a worker for each entry of the stream, in order."""
    with redis_client(database.redis_url) as client, psycopg.connect(database.worker_url, autocommit=True) as worker:
        entries: Any = client.xrange(STREAM)
        query = "SELECT verdict FROM pfsup.begin_work(%s, 'mail', 'w', NULL, jsonb_build_object('source', %s::text))"
        said = [worker.execute(query, (f["dispatch_id"], f["source"])).fetchone() for _, f in entries]
        return [(int(f["dispatch_id"]), str(row and row[0])) for (_, f), row in zip(entries, said, strict=True)]


async def work_again(settings: Settings, boot_id: str, database: Database) -> None:
    async with at_work(Dispatch(settings, "dispatch"), TestLink(boot_id=boot_id, generation=2)):
        await auntil(lambda: statuses(database)["pending"] == 0)


@pytest.mark.parametrize(
    ("point", "left", "times"),
    [("claimed", {"pending": ROWS}, 1), ("sent", {"pending": ROWS}, 2), ("marked", {"sent": ROWS}, 1)],
)
async def test_dispatch_killed_at_a_boundary_loses_nothing_and_lets_one_worker_in(
    database: Database, point: str, left: dict[str, int], times: int
):
    settings, boot_id = patient(database), str(uuid4())
    ids = stage(database, count=ROWS)
    with stopped_at(point, settings, boot_id=boot_id) as pid:
        kill(pid)
        assert statuses(database) == left
        assert leased(database) == left.get("pending", 0)
        await work_again(settings, boot_id, database)
    assert leased(database) == 0
    assert delivered(database) == dict.fromkeys(ids, times)
    verdicts = begin_every_entry(database)
    assert Counter(verdicts)[(ids[0], "go")] == 1
    assert [dispatch_id for dispatch_id, verdict in verdicts if verdict == "go"] == ids
    assert column(database, "send_attempts + attempts + recoveries") == [0] * ROWS


async def test_a_worker_that_began_before_the_mark_is_not_disturbed_by_the_crash(database: Database):
    settings, boot_id = patient(database), str(uuid4())
    ids = stage(database, count=2)
    with stopped_at("sent", settings, boot_id=boot_id) as pid:
        assert begin_every_entry(database) == [(ids[0], "go"), (ids[1], "go")]
        kill(pid)
        await work_again(settings, boot_id, database)
    assert statuses(database) == {"running": 2}
    assert delivered(database) == dict.fromkeys(ids, 1)


async def test_claims_of_an_earlier_boot_of_this_instance_are_taken_back_at_once(database: Database):
    settings = patient(database)
    stage(database, count=3)
    with stopped_at("claimed", settings, boot_id=str(uuid4())) as pid:
        kill(pid)
        async with at_work(Dispatch(settings, "dispatch"), TestLink(boot_id=str(uuid4()))):
            await auntil(lambda: statuses(database) == {"sent": 3})
