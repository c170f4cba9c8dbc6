"""Housekeeping: what has ended leaves in bounded deletes, and streams of finished tasks are empty."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.housekeeping import Housekeeping
from pfsup.domains.housekeeping.role import STATEMENTS_A_PASS, Report
from pfsup.domains.housekeeping.streams import StreamCleaner
from pfsup.shared.db.pool import open_pool
from pfsup.shared.drain import Drain
from pfsup.shared.sinks.redis_wire import Wires
from support.database import Database
from support.link import TestLink, at_work
from support.outbox import Claimer, column, fill, stage, statuses
from support.servers import RedisServer, redis_client
from support.waiting import auntil

Pass = Callable[[], Awaitable[Report]]


@asynccontextmanager
async def passes(database: Database, **housekeeping: Any) -> AsyncGenerator[Pass]:
    """Call what this yields for one pass of housekeeping."""
    settings = database.settings(housekeeping=values.Housekeeping(**housekeeping))
    role = Housekeeping(settings, "housekeeping")
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            open_pool(settings.database, values.Pool(), application_name="pfsup:housekeeping:1")
        )
        wires = Wires(settings.redis, client_name="pfsup:housekeeping:1")
        stack.push_async_callback(wires.close)
        drain = Drain()
        yield lambda: role.run_once(pool, wires, drain)


def end(database: Database, status: str, days_ago: int, where: str = "true") -> None:
    query = (
        "UPDATE pfsup.async_dispatches SET status = %(status)s, lease_token = NULL, lease_expires_at = NULL,"
        " claimed_by = NULL, sent_at = clock_timestamp(),"
        " finished_at = clock_timestamp() - make_interval(days => %(ago)s),"
        f" staged_at = clock_timestamp() - make_interval(days => %(ago)s) WHERE {where}"
    )
    with database.superuser() as conn:
        conn.execute(query.encode(), {"status": status, "ago": days_ago})


@pytest.mark.parametrize(
    ("status", "goes"),
    [("consumed", True), ("rejected", True), ("cancelled", True), ("dead", False), ("unknown", False)],
)
async def test_retention_removes_what_ended_and_keeps_what_a_person_must_decide(
    database: Database, status: str, goes: bool
):
    stage(database, count=3)
    end(database, status, 8)
    async with passes(database) as one:
        report = await one()
    assert (report.rows, statuses(database)) == ((3, {}) if goes else (0, {status: 3}))


async def test_retention_counts_from_the_end_of_a_row(database: Database):
    stage(database, count=2)
    end(database, "consumed", 6, "aggregate_id = '1'")
    end(database, "consumed", 8, "aggregate_id = '2'")
    async with passes(database) as one:
        await one()
    assert column(database, "aggregate_id") == ["1"]


async def test_retention_takes_effects_along_and_passes_over_locked_rows(database: Database):
    ids = stage(database, count=3)
    end(database, "consumed", 8)
    with database.superuser() as conn:
        conn.execute("INSERT INTO pfsup.dispatch_effects VALUES (%s, 'main', 'done', NULL, 1)", ids[:1])
        async with passes(database) as one:
            with conn.transaction():
                conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids[1:2])
                assert (await one()).rows == 2
            assert (await one()).rows == 1


async def test_retention_is_bounded_in_a_pass_and_goes_on_in_the_next(database: Database):
    fill(database, "mail", 250)
    end(database, "consumed", 8)
    async with passes(database, batch_size=10) as one:
        reports = [await one() for _ in range(2)]
    assert [(r.rows, r.complete) for r in reports] == [(10 * STATEMENTS_A_PASS, False), (50, True)]


async def test_retention_stops_walking_at_rows_that_are_too_young(database: Database):
    fill(database, "mail", 20)
    end(database, "consumed", 8, "id <= 10")
    async with passes(database, batch_size=10) as one:
        assert (await one()).complete
    with Claimer(database) as claimer:
        query = "SELECT last_id FROM pfsup.prune_ended(0, 5, '7 days')"
        assert claimer.conn.execute(query).fetchone() == (None,)


async def test_old_audit_lines_boots_and_pauses_leave(database: Database):
    with database.superuser() as conn:
        conn.execute(
            "INSERT INTO pfsup.audit_log (kind, who, subject, action, at) SELECT 'system', 'x', 'y', 'z',"
            " clock_timestamp() - make_interval(days => n) FROM generate_series(510, 310, -50) AS n"
        )
        conn.execute(
            "INSERT INTO pfsup.instances (boot_id, name, host, pid, version, beat_at) VALUES"
            " (gen_random_uuid(), 'a', 'h', 1, '0', now() - interval '8 days'),"
            " (gen_random_uuid(), 'b', 'h', 1, '0', now())"
        )
        conn.execute(
            "INSERT INTO pfsup.controls (kind, name, who, why, until) VALUES"
            " ('queue', 'a', 'x', 'y', now() - interval '1 s'), ('queue', 'b', 'x', 'y', NULL)"
        )
        async with passes(database) as one:
            report = await one()
        assert (report.audit_lines, report.others) == (3, 2)
        assert conn.execute("SELECT count(*) FROM pfsup.audit_log").fetchone() == (2,)
        assert conn.execute("SELECT name FROM pfsup.instances").fetchall() == [("b",)]
        assert conn.execute("SELECT name FROM pfsup.controls").fetchall() == [("b",)]


async def test_the_report_tells_how_the_table_is_doing(database: Database):
    async with passes(database) as one:
        health = (await one()).health
    assert health["table_bytes"] > 0
    assert health["notification_queue"] == 0


STREAM = "pfsup:pfsup:mail"


def write(client: Any, count: int) -> list[str]:
    with client.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.xadd(STREAM, {"v": "1", "dispatch_id": str(n + 1)})
        return pipe.execute()


async def test_a_stream_of_a_hundred_thousand_entries_that_were_only_acknowledged_is_empty(database: Database):
    count = 100_000
    stage(database)  # makes the queue known
    with redis_client(database.redis_url) as client:
        client.xgroup_create(STREAM, "pfsup", id="0", mkstream=True)
        write(client, count)
        while got := client.xreadgroup("pfsup", "foreign", {STREAM: ">"}, count=1000):
            client.xack(STREAM, "pfsup", *[entry for entry, _ in got[0][1]])
        async with passes(database) as one:
            assert (await one()).entries == count
        assert client.xlen(STREAM) == 0


async def test_entries_that_nobody_has_read_or_acknowledged_stay(database: Database):
    stage(database)
    with redis_client(database.redis_url) as client:
        client.xgroup_create(STREAM, "pfsup", id="0", mkstream=True)
        ids = write(client, 10)
        client.xreadgroup("pfsup", "foreign", {STREAM: ">"}, count=6)
        client.xack(STREAM, "pfsup", *ids[:2], ids[4])
        async with passes(database) as one:
            assert (await one()).entries == 3
        assert [entry for entry, _ in client.xrange(STREAM)] == [*ids[2:4], *ids[5:]]


async def test_entries_that_another_group_still_needs_stay(database: Database):
    stage(database)
    with redis_client(database.redis_url) as client:
        for group in ("pfsup", "second"):
            client.xgroup_create(STREAM, group, id="0", mkstream=True)
        ids = write(client, 4)
        client.xreadgroup("pfsup", "a", {STREAM: ">"})
        client.xack(STREAM, "pfsup", *ids)
        client.xreadgroup("second", "b", {STREAM: ">"}, count=1)
        client.xack(STREAM, "second", ids[0])
        async with passes(database) as one:
            assert (await one()).entries == 1
        assert client.xlen(STREAM) == 3


async def test_a_stream_without_a_group_is_left_alone(database: Database):
    stage(database)
    with redis_client(database.redis_url) as client:
        write(client, 5)
        async with passes(database) as one:
            assert (await one()).entries == 0


async def test_what_a_dead_consumer_left_pending_goes_when_its_dispatch_has_ended(database: Database):
    ids = stage(database, count=2)
    end(database, "consumed", 0, f"id = {ids[0]}")
    with redis_client(database.redis_url) as client:
        client.xgroup_create(STREAM, "pfsup", id="0", mkstream=True)
        entries = write(client, 2)
        assert ids == [1, 2]
        client.xreadgroup("pfsup", "dead", {STREAM: ">"})
        client.xclaim(STREAM, "pfsup", "dead", 0, entries, idle=120_000, justid=True)
        async with passes(database) as one:
            assert (await one()).entries == 1
        assert [entry for entry, _ in client.xrange(STREAM)] == entries[1:]
        assert client.xpending(STREAM, "pfsup")["pending"] == 1


async def test_a_key_of_another_kind_is_not_touched(database: Database):
    wires = Wires(values.Redis(url=database.redis_url), client_name="pfsup:housekeeping:1")

    async def ended_of(ids: list[int]) -> set[int]:
        return set(ids)

    with redis_client(database.redis_url) as client:
        client.set(STREAM, "x")
        assert await StreamCleaner(wires, group="pfsup", ended_of=ended_of).clean(STREAM) == 0
        assert client.get(STREAM) == "x"
    await wires.close()


async def test_housekeeping_as_a_role_makes_a_pass_each_interval_and_drains(database: Database):
    stage(database, count=2)
    end(database, "consumed", 8)
    link = TestLink(name="housekeeping")
    settings = database.settings(housekeeping=values.Housekeeping(interval=0.05))
    async with at_work(Housekeeping(settings, "housekeeping"), link):
        await auntil(lambda: statuses(database) == {})
        await auntil(lambda: link.phases.count("cleaning") >= 3 and link.figures["complete"])


async def test_housekeeping_waits_with_the_remedy_until_the_schema_is_there(empty_database: Database):
    link = TestLink(name="housekeeping")
    role = Housekeeping(empty_database.settings(), "housekeeping")
    async with at_work(role, link, ready=False):
        await auntil(lambda: link.reason)
    assert "run: pfsup migrate" in str(link.reason)


async def test_housekeeping_waits_while_redis_is_away_and_goes_on_after(database: Database, own_redis: RedisServer):
    stage(database)
    link = TestLink(name="housekeeping")
    settings = database.settings(redis=values.Redis(url=own_redis.url), housekeeping=values.Housekeeping(interval=0.05))
    own_redis.stop()
    async with at_work(Housekeeping(settings, "housekeeping"), link):
        await auntil(lambda: "cannot reach Redis" in str(link.reason))
        own_redis.start()
        await auntil(lambda: link.reason is None and link.figures)


def test_housekeeping_is_the_run_roles_alone(database: Database):
    calls = ("prune_ended(0, 1, '1 s')", "prune_audit(1, '1 s')", "table_health()", "known_queues()")
    for url in (database.app_url, database.worker_url, database.read_url):
        with psycopg.connect(url, autocommit=True) as conn:
            for call in calls:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f"SELECT pfsup.{call}".encode())
