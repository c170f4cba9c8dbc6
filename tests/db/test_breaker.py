"""The broker or one stream fails: rows wait uncharged, others go on, and everything leaves once it is well again."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from pfsup.shared.sinks import redis_stream
from pfsup.shared.sinks.redis_stream import ENTRY_LIMIT_BYTES, RedisStreams
from support.database import Database
from support.gates import Gates
from support.link import TestLink, at_work
from support.outbox import column, fill, leased, stage, statuses
from support.servers import RedisServer, redis_client
from support.tls import TlsRedis
from support.waiting import auntil


def on(database: Database, server: RedisServer, **dispatch: Any) -> values.Settings:
    return database.settings(
        redis=values.Redis(url=server.url, socket_timeout=0.3),
        dispatch=replace(values.Dispatch(scan_interval=0.1), **dispatch),
    )


def uncharged(database: Database) -> bool:
    return set(column(database, "send_attempts")) == {0}


async def is_open(link: TestLink, reason: str) -> None:
    await auntil(lambda: link.figures.get("breaker") == "open" and reason in link.figures["breaker_reason"])


def pauses(gates: Gates) -> list[float]:
    """How long the loop meant to rest, each time."""
    return [facts["pause_s"] for name, facts in gates.reached if name == "resting"]


async def test_broker_that_is_down_costs_rows_nothing_and_a_few_log_lines(
    database: Database, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="pfsup")
    logging.getLogger("pfsup").propagate = True
    link, gates = TestLink(), Gates()
    async with at_work(Dispatch(on(database, own_redis), "dispatch", points=gates), link):
        own_redis.stop()
        fill(database, "mail", 10_000)
        link.wake.wake()
        await is_open(link, "cannot reach Redis")
        assert "cannot reach Redis" in str(link.reason)
        # A pause of less than a millisecond is what a coarse timer left of the one before: no trial of its own.
        await auntil(lambda: len([pause_s for pause_s in pauses(gates) if pause_s > 0.001]) >= 12)
        assert (statuses(database), leased(database)) == ({"pending": 10_000}, 0)
        own_redis.start()
        await auntil(lambda: statuses(database) == {"sent": 10_000})
        await auntil(lambda: link.figures.get("breaker") == "closed")
        assert link.reason is None
    assert uncharged(database)
    assert len(caplog.records) <= 20
    assert max(pauses(gates)) <= 0.5


async def test_broker_that_is_frozen_is_tried_with_a_sign_of_life_before_any_row(
    database: Database, own_redis: RedisServer
):
    """Bytes sent to a frozen server are executed when it wakes: every trial row would be one more duplicate."""
    link = TestLink()
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), link):
        stage(database)
        await auntil(lambda: statuses(database) == {"sent": 1})
        own_redis.stop_frozen()
        stage(database, count=10)
        await is_open(link, "did not answer within")
        own_redis.resume()
        await auntil(lambda: statuses(database) == {"sent": 11})
    assert uncharged(database)
    with own_redis.client() as client:
        ids = [fields["dispatch_id"] for _, fields in client.xrange("pfsup:pfsup:mail")]
    assert len(set(ids)) == 11
    assert len(ids) <= 21  # the batch that was cut off, once more


REFUSALS = {
    "out of memory": ("maxmemory", "1", "0", "out of memory"),
    "too few replicas": ("min-replicas-to-write", "3", "0", "NOREPLICAS"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_broker_that_refuses_everything_is_left_alone_until_it_takes_entries(
    database: Database, own_redis: RedisServer, refusal: str
):
    option, bad, good, said = REFUSALS[refusal]
    link = TestLink()
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), link):
        with own_redis.client() as client:
            client.config_set(option, bad)
            fill(database, "mail", 50)
            await is_open(link, said)
            assert leased(database) == 0
            client.config_set(option, good)
            await auntil(lambda: statuses(database) == {"sent": 50})
    assert uncharged(database)


async def test_broker_that_became_a_replica_is_left_alone(database: Database, own_redis: RedisServer):
    link = TestLink()
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), link):
        with own_redis.client() as client:
            client.replicaof("127.0.0.1", "1")
            fill(database, "mail", 5)
            await is_open(link, "read-only replica")
            client.replicaof("NO", "ONE")
            await auntil(lambda: statuses(database) == {"sent": 5})
    assert uncharged(database)


async def test_user_that_is_refused_is_named_as_the_remedy(database: Database, own_redis: RedisServer):
    link = TestLink()
    settings = on(database, own_redis)
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "mover", "on", ">right", "~*", "+@all")
    wrong = replace(settings.redis, url=own_redis.url.replace("unix://", "unix://mover:wrong@"))
    async with at_work(Dispatch(replace(settings, redis=wrong), "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
    assert "user or password" in str(link.reason)
    assert "wrong" not in str(link.reason).replace("wrongpass", "")


async def test_stream_of_another_type_is_left_alone_while_other_queues_go_on(
    database: Database, own_redis: RedisServer
):
    link = TestLink()
    with own_redis.client() as client:
        client.set("pfsup:pfsup:bad", "x")
        async with at_work(Dispatch(on(database, own_redis), "dispatch"), link):
            fill(database, "bad", 10)
            fill(database, "good", 300)
            link.wake.wake()
            await auntil(lambda: statuses(database) == {"sent": 300, "pending": 10})
            await auntil(lambda: "WRONGTYPE" in link.figures["streams_left_alone"].get("bad", ""))
            assert link.figures["breaker"] == "closed"
            client.delete("pfsup:pfsup:bad")
            await auntil(lambda: statuses(database) == {"sent": 310})
            await auntil(lambda: link.figures["streams_left_alone"] == {})
    assert uncharged(database)


async def test_stream_that_the_user_may_not_write_is_left_alone(database: Database, own_redis: RedisServer):
    link = TestLink()
    settings = on(database, own_redis)
    with own_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "mover", "on", ">p", "~pfsup:pfsup:good", "+@all")
        narrow = replace(settings.redis, url=own_redis.url.replace("unix://", "unix://mover:p@"))
        async with at_work(Dispatch(replace(settings, redis=narrow), "dispatch"), link):
            fill(database, "bad", 2)
            fill(database, "good", 3)
            link.wake.wake()
            await auntil(lambda: statuses(database) == {"sent": 3, "pending": 2})
            await auntil(lambda: "bad" in link.figures["streams_left_alone"])
            client.execute_command("ACL", "SETUSER", "mover", "~*")
            await auntil(lambda: statuses(database) == {"sent": 5})
    assert uncharged(database)


async def test_one_row_that_is_too_large_dies_visibly_while_a_thousand_others_leave(
    database: Database, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
):
    """A number of 131,072 digits takes few bytes as jsonb: the limit on payloads lets it pass."""
    logging.getLogger("pfsup").propagate = True
    long_text = "[" + ",".join(["1e131000"] * (ENTRY_LIMIT_BYTES // 131_000 + 1)) + "]"
    settings = on(database, own_redis, max_send_attempts=1)
    settings = replace(settings, redis=replace(settings.redis, payload="inline"))
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        stage(database, count=500)
        (bad,) = stage(database, payload=long_text)
        stage(database, count=500)
        await auntil(lambda: statuses(database) == {"sent": 1000, "dead": 1})
    assert column(database, "id", "status = 'dead'") == [bad]
    assert column(database, "send_attempts", "status = 'sent'") == [0] * 1000
    (error,) = column(database, "last_error", "status = 'dead'")
    assert re.search(r"cannot send: \d+ bytes as an entry, the limit is 1048576", error)
    assert any(f"dispatch {bad} is dead" in record.getMessage() for record in caplog.records)


async def test_one_row_on_which_redis_hangs_up_is_found_and_charged_alone(
    database: Database, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Every neighbour of such a row loses its answer too; only the trial of the oldest row alone tells them apart."""
    monkeypatch.setattr(redis_stream, "ENTRY_LIMIT_BYTES", 100 * 1024 * 1024)
    with own_redis.client() as client:
        client.config_set("proto-max-bulk-len", str(1024 * 1024))
    settings = on(database, own_redis, max_send_attempts=1)
    settings = replace(settings, redis=replace(settings.redis, payload="inline"))
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        with psycopg.connect(database.app_url) as conn:
            query = "SELECT id FROM pfsup.stage('mail', '1', %s::jsonb)"
            poison = "[" + ",".join(["1e131000"] * 9) + "]"
            payloads = [*["1"] * 20, poison, *["1"] * 20]
            ids = [row[0] for payload in payloads for row in conn.execute(query, (payload,)).fetchall()]
        await auntil(lambda: statuses(database) == {"sent": 40, "dead": 1})
    assert column(database, "id", "status = 'dead'") == [ids[20]]
    assert set(column(database, "send_attempts", "status = 'sent'")) == {0}


async def test_a_batch_that_is_too_long_for_redis_leaves_in_smaller_ones(database: Database, own_redis: RedisServer):
    """Above client-query-buffer-limit Redis closes the connection, though no single row is to blame."""
    with own_redis.client() as client:
        client.config_set("client-query-buffer-limit", str(1024 * 1024))
    settings = on(database, own_redis)
    settings = replace(settings, redis=replace(settings.redis, payload="inline"))
    payload = "x" * (200 * 1024)
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        stage(database, payload=f'["{payload}"]', count=8)
        await auntil(lambda: statuses(database) == {"sent": 8})
    assert uncharged(database)


@pytest.mark.parametrize("how", ["flushed", "restarted", "deleted"])
async def test_lost_stream_sends_its_rows_again_as_a_set_and_leaves_begun_ones(
    database: Database, own_redis: RedisServer, how: str
):
    link = TestLink()
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), link):
        ids = stage(database, count=1500)
        await auntil(lambda: statuses(database) == {"sent": 1500})
        await auntil(lambda: link.figures.get("watched_streams") == 1)
        with psycopg.connect(database.worker_url, autocommit=True) as worker:
            worker.execute("SELECT pfsup.begin_work(%s, 'mail', 'w')", ids[:1])
        if how == "restarted":
            own_redis.restart()
        else:
            with own_redis.client() as client:
                client.flushall() if how == "flushed" else client.delete("pfsup:pfsup:mail")
        await auntil(lambda: column(database, "deliveries", "status = 'sent'") == [2] * 1499)
        with own_redis.client() as client:
            assert {int(f["dispatch_id"]) for _, f in client.xrange("pfsup:pfsup:mail")} >= set(ids[1:])
            (group,) = client.xinfo_groups("pfsup:pfsup:mail")
            assert group["name"] == "pfsup"
    assert statuses(database) == {"sent": 1499, "running": 1}
    assert uncharged(database)


async def test_stream_that_was_lost_while_dispatch_was_down_is_noticed_at_its_start(
    database: Database, own_redis: RedisServer
):
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), TestLink()):
        stage(database, count=30)
        await auntil(lambda: statuses(database) == {"sent": 30})
    own_redis.restart()
    async with at_work(Dispatch(on(database, own_redis), "dispatch"), TestLink()):
        await auntil(lambda: column(database, "deliveries") == [2] * 30)


async def test_entries_that_workers_delete_are_no_lost_stream(database: Database, own_redis: RedisServer):
    link, gates = TestLink(), Gates()
    async with at_work(Dispatch(on(database, own_redis, scan_interval=0.02), "dispatch", points=gates), link):
        stage(database, count=30)
        await auntil(lambda: statuses(database) == {"sent": 30})
        with own_redis.client() as client:
            client.xtrim("pfsup:pfsup:mail", maxlen=0, approximate=False)
        seen = gates.count("chores")
        await gates.arrival("chores", seen + 5)
    assert (column(database, "deliveries"), statuses(database)) == ([1] * 30, {"sent": 30})


@pytest.mark.long
async def test_fifty_thousand_sent_rows_go_out_again_after_a_flush(database: Database, own_redis: RedisServer):
    link = TestLink()
    async with at_work(Dispatch(on(database, own_redis, batch_size=500), "dispatch"), link):
        fill(database, "mail", 50_000)
        link.wake.wake()
        await auntil(lambda: statuses(database) == {"sent": 50_000}, within_s=120)
        await auntil(lambda: link.figures.get("watched_streams") == 1)
        own_redis.flush()
        await auntil(lambda: min(column(database, "deliveries")) == 2, within_s=120)
    assert uncharged(database)


async def test_sink_speaks_tls_with_user_and_password(tls_redis: TlsRedis):
    sink = RedisStreams(values.Redis(url=tls_redis.url), client_name="pfsup:test:1")
    try:
        await sink.ping()
        assert await sink.wires.call(("SET", "k", "v"), ("DEL", "k")) == [b"OK", 1]
    finally:
        await sink.close()


@pytest.mark.parametrize("wrong", [{"user": "stranger"}, {"password": "nope"}])
async def test_sink_is_refused_with_a_wrong_login(tls_redis: TlsRedis, wrong: dict[str, Any]):
    sink = RedisStreams(values.Redis(url=tls_redis.address(**wrong)), client_name="pfsup:test:1")
    with pytest.raises(Exception, match=r"invalid username-password|WRONGPASS"):
        await sink.ping()


async def test_sink_reads_the_url_file_again_for_every_connection(own_redis: RedisServer, tmp_path: Path):
    file = tmp_path / "url"
    file.write_text("unix:///nowhere/redis.sock\n")
    sink = RedisStreams(values.Redis(url="", url_file=str(file)), client_name="pfsup:test:1")
    with pytest.raises(Exception, match="connecting"):
        await sink.ping()
    file.write_text(own_redis.url + "\n")
    await sink.ping()
    await sink.close()


async def test_sink_shows_its_name_in_the_client_list(own_redis: RedisServer):
    sink = RedisStreams(values.Redis(url=own_redis.url), client_name="pfsup:dispatch:7")
    await sink.ping()
    with redis_client(own_redis.url) as client:
        assert "pfsup:dispatch:7" in {one["name"] for one in client.client_list()}
    await sink.close()
