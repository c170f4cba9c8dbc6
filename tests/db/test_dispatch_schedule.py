"""When dispatch looks: the article's waits as facts that the loop says (pauses it computed, passes it made)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from support.database import Database
from support.gates import Gates
from support.link import TestLink, at_work
from support.outbox import fill, leased, stage, statuses
from support.servers import RedisServer
from support.waiting import auntil, until

HOUR_S = 3600.0
TICK_S = 0.2


def tuned(database: Database, **dispatch: Any) -> values.Settings:
    return database.settings(dispatch=values.Dispatch(**dispatch))


async def turns(count: int) -> None:
    """Let every task of the loop run `count` times."""
    for _ in range(count):
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0)


async def at_rest(gates: Gates) -> None:
    """Wait until the loop's last act was to rest. What the sends of its passes reach does not count."""
    loop = ("scanned", "resting")
    await auntil(lambda: [point for point, _ in gates.reached if point in loop][-1:] == ["resting"])


async def test_three_notifications_during_a_pass_cause_one_more_pass_and_none_is_lost(database: Database):
    """Real NOTIFYs of three commits, after the pass has looked: nothing else would look again within the hour."""
    link, gates = TestLink(), Gates()
    async with at_work(Dispatch(tuned(database, scan_interval=HOUR_S), "dispatch", points=gates), link):
        await auntil(lambda: link.wake.wakes >= 1)  # it listens: its own probe came back
        await auntil(lambda: not link.wake.is_set)
        await at_rest(gates)
        gates.hold("scanned")
        before, seen = gates.count("scanned"), link.wake.wakes
        link.wake.wake()
        await gates.arrival("scanned", before + 1)
        for _ in range(3):
            stage(database)
        await auntil(lambda: link.wake.wakes == seen + 4, what="three notifications have come")
        gates.open("scanned")
        await auntil(lambda: statuses(database) == {"sent": 3})
        await at_rest(gates)
        assert gates.count("scanned") == before + 2


@pytest.mark.parametrize("what", ["tick", "wake", "tick and wake"])
async def test_no_further_batch_starts_when_the_drain_is_ready_at_the_same_moment(database: Database, what: str):
    """The test holds the loop's thread while the tick falls due and wake and drain arrive: all are ready at once."""
    link, gates = TestLink(), Gates()
    interval_s = HOUR_S if what == "wake" else TICK_S
    settings = tuned(database, scan_interval=interval_s, wake="poll")
    async with at_work(Dispatch(settings, "dispatch", points=gates), link) as task:
        await at_rest(gates)
        await turns(5)
        over = time.monotonic() + 2 * TICK_S
        stage(database, count=3)
        until(lambda: time.monotonic() > over)  # a blocking wait on purpose
        if "wake" in what:
            link.wake.wake()
        link.drain.request(20.0)
        await task
    assert (statuses(database), leased(database), gates.count("claimed")) == ({"pending": 3}, 0, 0)


async def test_a_due_row_that_is_locked_does_not_make_it_spin(database: Database):
    """It rests for the whole scan interval; the row is found by the next look after its lock is gone."""
    link, gates = TestLink(), Gates()
    ids = stage(database)
    with database.superuser() as conn, conn.transaction():
        conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids)
        settings = tuned(database, scan_interval=HOUR_S, wake="poll")
        async with at_work(Dispatch(settings, "dispatch", points=gates), link):
            for turn in (1, 2, 3):
                assert (await gates.arrival("resting", turn))["pause_s"] == HOUR_S
                assert gates.count("scanned") == turn
                link.wake.wake()


async def test_it_rests_until_the_next_row_is_due_and_not_until_the_next_scan(database: Database):
    """The pause that it computed, held against the database's clock before and after."""
    left = "SELECT extract(epoch FROM available_at - clock_timestamp())::float8 FROM pfsup.async_dispatches"
    with psycopg.connect(database.app_url) as conn:
        conn.execute("SELECT pfsup.stage('mail', '1', available_at => clock_timestamp() + interval '20 s')")
    gates = Gates()
    with database.superuser() as conn:
        (most,) = conn.execute(left).fetchone() or (0.0,)
        settings = tuned(database, scan_interval=30.0, wake="poll")
        async with at_work(Dispatch(settings, "dispatch", points=gates), TestLink()):
            pause_s = (await gates.arrival("resting"))["pause_s"]
            (least,) = conn.execute(left).fetchone() or (0.0,)
    assert least <= pause_s <= most


async def test_a_row_due_earlier_than_the_one_waited_for_moves_the_deadline_forward(database: Database):
    """It rests for a row of next year; the notification of one due in 300 ms makes it compute again."""
    link, gates = TestLink(), Gates()
    stage(database, at="2999-01-01T00:00:00Z")
    async with at_work(Dispatch(tuned(database, scan_interval=HOUR_S), "dispatch", points=gates), link):
        await auntil(lambda: link.wake.wakes >= 1)
        await at_rest(gates)
        with psycopg.connect(database.app_url) as conn:
            conn.execute("SELECT pfsup.stage('mail', '1', available_at => clock_timestamp() + interval '300 ms')")
        await auntil(lambda: statuses(database) == {"sent": 1, "pending": 1})


async def test_the_pause_after_a_pass_is_none_while_batches_are_full_and_the_interval_after(database: Database):
    """Three full batches with an hour between scans, then one look that finds nothing, then rest."""
    fill(database, "mail", 30)
    gates = Gates()
    settings = tuned(database, batch_size=10, scan_interval=HOUR_S, wake="poll")
    async with at_work(Dispatch(settings, "dispatch", points=gates), TestLink()):
        assert (await gates.arrival("resting"))["pause_s"] == HOUR_S
        passes = [facts["rows"] for name, facts in gates.reached if name == "scanned"]
        assert passes == [10, 10, 10, 0]
        await auntil(lambda: statuses(database) == {"sent": 30})


async def test_it_stops_at_an_error_though_the_batch_was_full(database: Database, own_redis: RedisServer):
    """Full batches follow each other until an error: a backlog is not claimed again and again for a dead broker."""
    link, gates = TestLink(), Gates()
    settings = tuned(database, batch_size=10, scan_interval=HOUR_S, wake="poll", max_in_flight=1)
    settings = replace(settings, redis=values.Redis(url=own_redis.url, socket_timeout=0.3))
    async with at_work(Dispatch(settings, "dispatch", points=gates), link):
        await gates.arrival("resting")  # the pass of its start is over and found nothing
        own_redis.stop()
        fill(database, "mail", 100)
        before = gates.count("scanned")
        link.wake.wake()
        await auntil(lambda: link.figures.get("breaker") == "open")
        await gates.arrival("resting", gates.count("resting") + 10)
        assert gates.count("scanned") == before + 1
        assert (statuses(database), leased(database)) == ({"pending": 100}, 0)


async def test_a_drain_that_comes_while_it_waits_for_a_slot_claims_nothing_more(database: Database):
    """Every slot is taken by a send; the pass that waits for one looks at the drain before it claims."""
    fill(database, "mail", 100)
    link, gates = TestLink(), Gates()
    gates.hold("sent")
    settings = tuned(database, batch_size=10, max_in_flight=2)
    async with at_work(Dispatch(settings, "dispatch", points=gates), link) as task:
        await gates.arrival("sent", 2)
        link.drain.request(20.0)
        gates.open("sent")
        await task
        assert gates.count("scanned") == 2
    assert (statuses(database), leased(database)) == ({"sent": 20, "pending": 80}, 0)
