"""Dispatch as a role, on real servers: rows that are committed reach their stream, when and as often as promised."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from pfsup.domains.dispatch.outbox import Batch
from pfsup.shared.db.migrate import migrate
from support.database import Database
from support.gates import Gates
from support.link import TestLink, at_work
from support.outbox import column, fill, leased, stage, statuses
from support.servers import RedisServer, redis_client
from support.waiting import auntil

HOUR_S = 3600.0


def tuned(database: Database, **dispatch: Any) -> values.Settings:
    return database.settings(dispatch=values.Dispatch(**dispatch))


async def sent(database: Database, count: int) -> None:
    await auntil(lambda: statuses(database)["sent"] == count, what=f"{count} rows are sent")


def entries(database: Database, queue: str = "mail") -> list[dict[str, str]]:
    with redis_client(database.redis_url) as client:
        return [fields for _, fields in client.xrange(f"pfsup:pfsup:{queue}")]


async def test_dispatch_sends_what_is_committed_and_marks_it(database: Database):
    async with at_work(Dispatch(database.settings(), "dispatch"), TestLink()):
        ids = stage(database, count=250)
        await sent(database, 250)
    batches: dict[str, list[int]] = {}
    for entry in entries(database):
        batches.setdefault(entry["claimed_at"], []).append(int(entry["dispatch_id"]))
    # Batches are in flight together and may overtake each other; within one the order is (due time, id).
    assert sorted(batches.values()) == [ids[:100], ids[100:200], ids[200:]]
    assert leased(database) == 0


@pytest.mark.parametrize("payload", ["reference", "inline"])
async def test_dispatch_writes_the_entry_that_readers_rely_on(database: Database, payload: Any):
    settings = database.settings(redis=values.Redis(url=database.redis_url, payload=payload))
    options = '{"headers": {"trace": "é"}, "tenant": "acme"}'
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        (one,) = stage(database, payload='{"a": [1, null]}', options=options)
        await sent(database, 1)
    (entry,) = entries(database)
    with database.superuser() as conn:
        source = conn.execute("SELECT installation || '/' || epoch FROM pfsup.meta").fetchone()
    wanted = ["v", "dispatch_id", "source", "actor", "aggregate_id", "tenant", "delivery", "headers", "staged_at"]
    assert list(entry) == [*wanted, "claimed_at", *(["payload"] if payload == "inline" else [])]
    assert (entry["v"], entry["dispatch_id"], entry["delivery"], entry["tenant"]) == ("1", str(one), "1", "acme")
    assert (entry["source"],) == source
    assert json.loads(entry["headers"]) == {"trace": "é"}
    assert float(entry["staged_at"]) <= float(entry["claimed_at"])
    if payload == "inline":
        assert json.loads(entry["payload"]) == {"a": [1, None]}


async def test_dispatch_makes_the_group_from_the_beginning_of_the_stream(database: Database):
    async with at_work(Dispatch(database.settings(), "dispatch"), TestLink()):
        stage(database)
        await sent(database, 1)
    with redis_client(database.redis_url) as client:
        (group,) = client.xinfo_groups("pfsup:pfsup:mail")
    assert (group["name"], group["last-delivered-id"]) == ("pfsup", "0-0")


async def test_dispatch_keeps_where_an_entry_stands(database: Database):
    settings = database.settings(queues={"mail": values.Queue(stream="post")})
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        stage(database)
        await sent(database, 1)
    with redis_client(database.redis_url) as client:
        ((entry_id, _),) = client.xrange("post")
    assert column(database, "sink_ref") == [f"post {entry_id}"]


async def test_dispatch_sends_full_batches_without_a_pause(database: Database):
    """Three full batches and an hour between scans: only a claim that follows at once can empty the outbox."""
    fill(database, "mail", 30)
    async with at_work(Dispatch(tuned(database, batch_size=10, scan_interval=HOUR_S), "dispatch"), TestLink()):
        await sent(database, 30)


async def test_dispatch_is_woken_by_a_commit(database: Database):
    async with at_work(Dispatch(tuned(database, scan_interval=HOUR_S), "dispatch"), TestLink()) as _:
        stage(database)
        await sent(database, 1)


async def test_dispatch_is_woken_by_its_parent(database: Database):
    link = TestLink()
    async with at_work(Dispatch(tuned(database, scan_interval=HOUR_S, wake="poll"), "dispatch"), link):
        stage(database)
        link.wake.wake()
        await sent(database, 1)


async def test_dispatch_finds_rows_by_scanning_when_nothing_wakes_it(database: Database):
    link = TestLink()
    async with at_work(Dispatch(tuned(database, scan_interval=0.05, wake="poll"), "dispatch"), link):
        stage(database)
        await sent(database, 1)
        await auntil(lambda: link.figures.get("listen") == "poll: configured")


async def test_dispatch_sends_a_delayed_row_when_it_is_due_not_at_the_next_scan(database: Database):
    """Nobody wakes it and the next scan is an hour away."""
    with psycopg.connect(database.app_url) as conn:
        conn.execute("SELECT pfsup.stage('mail', '1', available_at => clock_timestamp() + interval '300 ms')")
    async with at_work(Dispatch(tuned(database, scan_interval=HOUR_S, wake="poll"), "dispatch"), TestLink()):
        await sent(database, 1)
    assert column(database, "sent_at >= available_at") == [True]


async def test_a_wake_during_a_pass_causes_one_more_pass_and_three_cause_one(database: Database):
    link, gates = TestLink(), Gates()
    settings = tuned(database, scan_interval=HOUR_S, wake="poll", max_in_flight=1)
    async with at_work(Dispatch(settings, "dispatch", points=gates), link):
        await gates.arrival("scanned")
        gates.hold("scanned")
        link.wake.wake()
        await gates.arrival("scanned", 2)
        stage(database)  # committed during the pass, after its scan
        for _ in range(3):
            link.wake.wake()
        gates.open("scanned")
        await sent(database, 1)
        await gates.arrival("resting", 2)
        assert gates.count("scanned") == 3


async def test_at_most_max_in_flight_send_tasks_exist(database: Database):
    fill(database, "mail", 1000)
    link, gates = TestLink(), Gates()
    gates.hold("claimed")
    async with at_work(Dispatch(tuned(database, batch_size=10, max_in_flight=4), "dispatch", points=gates), link):
        await gates.arrival("claimed", 4)
        link.wake.wake()
        await auntil(lambda: link.figures.get("in_flight") == 4)
        assert leased(database) == 40  # what waits, waits in the table
        gates.open("claimed")
        await sent(database, 1000)
    assert max(facts["in_flight"] for name, facts in gates.reached if name == "scanned") <= 4


async def test_drain_finishes_what_is_in_flight_and_takes_nothing_new(database: Database):
    fill(database, "mail", 100)
    link, gates = TestLink(), Gates()
    gates.hold("sent")
    settings = tuned(database, batch_size=10, max_in_flight=2)
    async with at_work(Dispatch(settings, "dispatch", points=gates), link) as task:
        await gates.arrival("sent", 2)
        link.drain.request(20.0)
        link.wake.wake()
        gates.open("sent")
        await task
    assert statuses(database) == {"sent": 20, "pending": 80}
    assert leased(database) == 0
    assert len(entries(database)) == 20


async def test_drain_that_comes_with_a_wake_and_a_tick_starts_no_further_batch(database: Database):
    link, gates = TestLink(), Gates()
    settings = tuned(database, scan_interval=HOUR_S, wake="poll")
    async with at_work(Dispatch(settings, "dispatch", points=gates), link) as task:
        await gates.arrival("resting")
        stage(database)
        link.wake.wake()
        link.drain.request(20.0)
        await task
    assert (statuses(database), gates.count("claimed")) == ({"pending": 1}, 0)


async def test_drain_gives_a_batch_back_that_was_claimed_while_it_was_asked_for(database: Database):
    stage(database)
    link, gates = TestLink(), Gates()
    gates.hold("scanned")
    async with at_work(Dispatch(database.settings(), "dispatch", points=gates), link) as task:
        await gates.arrival("scanned")
        link.drain.request(20.0)
        gates.open("scanned")
        await task
    assert (statuses(database), leased(database), entries(database)) == ({"pending": 1}, 0, [])


async def test_drain_whose_time_is_over_gives_the_claims_back(database: Database):
    stage(database, count=3)
    link, gates = TestLink(), Gates()
    gates.hold("claimed")
    async with at_work(Dispatch(database.settings(), "dispatch", points=gates), link) as task:
        await gates.arrival("claimed")
        link.drain.request(1.2)
        await task
    assert (statuses(database), leased(database)) == ({"pending": 3}, 0)


async def test_a_row_that_was_locked_at_its_mark_is_marked_later_and_not_sent_twice(database: Database):
    link, gates = TestLink(), Gates()
    gates.hold("sent")
    settings = tuned(database, scan_interval=0.05)
    with database.superuser() as conn:
        async with at_work(Dispatch(settings, "dispatch", points=gates), link):
            ids = stage(database, count=100)
            await gates.arrival("sent")
            with conn.transaction():
                conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids[:1])
                gates.open("sent")
                await sent(database, 99)
            await sent(database, 100)
    assert len(entries(database)) == 100


async def test_a_pipeline_does_not_start_with_a_claim_that_is_about_to_end(database: Database):
    stage(database)
    link, gates = TestLink(), Gates()
    gates.hold("claimed")
    settings = tuned(database, scan_interval=HOUR_S, wake="poll")
    async with at_work(Dispatch(settings, "dispatch", points=gates), link):
        batch: Batch = (await gates.arrival("claimed"))["batch"]
        object.__setattr__(batch, "expires", batch.expires - 28.5)  # 30 s of lease, 1.5 s of it left, 2 s for Redis
        gates.open("claimed")
        await auntil(lambda: leased(database) == 0)
        assert (statuses(database), entries(database)) == ({"pending": 1}, [])


async def test_restarted_dispatch_takes_the_claims_of_its_predecessor_back_at_once(database: Database):
    """The lease of 30 s is not waited for; nobody scans within the hour but at the start."""
    stage(database, count=3)
    settings = tuned(database, scan_interval=HOUR_S, wake="poll")
    before, gates = TestLink(), Gates()
    gates.hold("claimed")
    task = asyncio.create_task(Dispatch(settings, "dispatch", points=gates).run(before))
    await gates.arrival("claimed")
    task.cancel()  # as good as dead: nothing is given back
    await asyncio.gather(task, return_exceptions=True)
    assert leased(database) == 3
    again = TestLink(boot_id=before.identity.boot_id, generation=2)
    async with at_work(Dispatch(settings, "dispatch"), again):
        await sent(database, 3)


async def test_dispatch_keeps_a_queue_within_its_max_outstanding(database: Database):
    settings = database.settings(queues={"mail": values.Queue(max_outstanding=3)})
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        ids = stage(database, count=5)
        stage(database, "other", 10)
        await sent(database, 13)
        with psycopg.connect(database.worker_url, autocommit=True) as worker:
            begun = worker.execute("SELECT token FROM pfsup.begin_work(%s, 'mail', 'w')", ids[:1]).fetchone()
            assert begun is not None
            worker.execute("SELECT pfsup.settle(%s, %s, 'consumed')", (ids[0], begun[0]))
        await auntil(lambda: statuses(database) == {"sent": 13, "consumed": 1, "pending": 1})


async def test_dispatch_writes_the_policies_of_actors_before_it_is_ready(database: Database):
    actor = values.Actor(queue="slow", completion="handover", max_attempts=7, retry_base=1.5)
    async with at_work(Dispatch(database.settings(actors={"mail": actor}), "dispatch"), TestLink()):
        with database.superuser() as conn:
            query = "SELECT name, queue, completion, max_attempts, retry_base::text FROM pfsup.actors"
            assert conn.execute(query).fetchall() == [("mail", "slow", "handover", 7, "00:00:01.5")]
        stage(database)
        await auntil(lambda: statuses(database) == {"consumed": 1})


async def test_a_wish_that_its_envelope_missed_is_staged_within_a_scan_interval(database: Database):
    async with at_work(Dispatch(tuned(database, scan_interval=0.05), "dispatch"), TestLink()):
        with database.superuser() as conn:
            conn.execute("INSERT INTO pfsup.restaged (delivery_key, actor, aggregate_id) VALUES ('k', 'mail', '1')")
        await sent(database, 1)


async def test_dispatch_waits_with_the_remedy_until_the_schema_is_there(empty_database: Database):
    link = TestLink()
    async with at_work(Dispatch(empty_database.settings(), "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
        assert "run: pfsup migrate" in str(link.reason)
        assert not link.is_ready
        migrate(empty_database.url)
        await auntil(lambda: link.is_ready)
        assert link.reason is None


async def test_dispatch_waits_with_the_remedy_until_redis_is_there(database: Database, own_redis: RedisServer):
    link = TestLink()
    own_redis.stop()
    settings = database.settings(redis=values.Redis(url=own_redis.url))
    async with at_work(Dispatch(settings, "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
        assert "cannot reach Redis" in str(link.reason)
        own_redis.start()
        await auntil(lambda: link.is_ready)


async def test_dispatch_drains_while_it_waits_for_a_dependency(empty_database: Database):
    link = TestLink()
    async with at_work(Dispatch(empty_database.settings(), "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
    assert not link.is_ready


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "postgresql://nobody_here@/postgres?host=/nowhere"}, "nobody listens"),
        ({"schema": "elsewhere"}, "run: pfsup migrate"),
    ],
)
async def test_dispatch_says_what_is_wrong_with_the_database(database: Database, change: dict[str, str], said: str):
    settings = database.settings()
    link = TestLink()
    wrong = replace(settings, database=replace(settings.database, **change))  # pyright: ignore[reportArgumentType] - text
    async with at_work(Dispatch(wrong, "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
    assert said in str(link.reason)


async def test_dispatch_goes_on_by_itself_after_the_database_was_away(own_database: Database):
    link = TestLink()
    async with at_work(Dispatch(tuned(own_database, scan_interval=0.1), "dispatch"), link):
        stage(own_database)
        await sent(own_database, 1)
        own_database.server.stop()
        await auntil(lambda: link.reason, what="it waits for the database")
        own_database.server.start()
        await auntil(lambda: link.reason is None)
        stage(own_database)
        await sent(own_database, 2)
        await auntil(lambda: link.figures.get("listen") == "listening")
    assert leased(own_database) == 0


async def test_drain_ends_although_the_database_is_frozen(own_database: Database):
    """SIGSTOP: connections stay open and nothing answers. The budget is the drain's, not the server's."""
    link, gates = TestLink(), Gates()
    gates.hold("sent")
    async with at_work(Dispatch(own_database.settings(), "dispatch", points=gates), link) as task:
        stage(own_database)
        await gates.arrival("sent")
        own_database.server.stop_frozen()
        link.drain.request(8.0)
        gates.open("sent")
        await asyncio.wait_for(task, 25)
        own_database.server.resume()


async def test_dispatch_goes_on_after_the_database_was_frozen(own_database: Database):
    """Nothing is said, no connection ends: only the deadline on this side notices."""
    link = TestLink()
    settings = tuned(own_database, scan_interval=0.1)
    hasty = replace(settings.database, statement_timeout=0.3, connect_timeout=1.0)
    async with at_work(Dispatch(replace(settings, database=hasty), "dispatch"), link):
        stage(own_database)
        await sent(own_database, 1)
        own_database.server.stop_frozen()
        await auntil(lambda: link.reason, what="it waits for the database")
        own_database.server.resume()
        await auntil(lambda: link.reason is None)
        stage(own_database)
        await sent(own_database, 2)
    assert leased(own_database) == 0


async def test_two_dispatchers_share_a_backlog_and_send_each_row_once(database: Database):
    ids = stage(database, count=600)
    settings = tuned(database, batch_size=20)
    one, other = TestLink(instance="one"), TestLink(instance="other")
    async with at_work(Dispatch(settings, "dispatch"), one), at_work(Dispatch(settings, "dispatch"), other):
        await sent(database, 600)
    assert sorted(int(entry["dispatch_id"]) for entry in entries(database)) == ids


async def test_marks_that_met_a_database_that_was_away_are_written_when_it_is_back(own_database: Database):
    """The rows are in the stream; without the owed marks they would be sent a second time after their lease."""
    link, gates = TestLink(), Gates()
    gates.hold("sent")
    async with at_work(Dispatch(tuned(own_database, scan_interval=0.1), "dispatch", points=gates), link):
        stage(own_database, count=5)
        await gates.arrival("sent")
        own_database.server.stop()
        gates.open("sent")
        await auntil(lambda: link.reason)
        own_database.server.start()
        await sent(own_database, 5)
    assert len(entries(own_database)) == 5
