"""The envelope domain heals the outbox: lost messages are sent anew, lost runs judged, what waits is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis.exceptions as broker
from pfsup.config import values
from pfsup.domains.decisions import Decision
from support.database import Database
from support.gates import Gates
from support.messages import Stream, stream_of
from support.recovery import envelopes
from support.runs import Begun, Owner, Worker
from support.servers import RedisServer, redis_client

GROUP = "pfsup"


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        found.client.xgroup_create(found.name, GROUP, id="0", mkstream=True)
        yield found


def due(owner: Owner, *numbers: int, sent_ago: str = "10 minutes") -> None:
    """The rows were sent a while ago and their time to be looked at has come."""
    owner.rows(
        "UPDATE pfsup.async_dispatches SET check_at = clock_timestamp(),"
        " sent_at = clock_timestamp() - %s::interval WHERE id = ANY(%s)",
        sent_ago,
        list(numbers),
    )


def lose(owner: Owner, number: int) -> None:
    """The worker's lease ended, and the row is due to be looked at."""
    owner.expire(number)
    owner.rows("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp() WHERE id = %s", number)


def take_up(stream: Stream, *, idle_ms: int = 0, count: int = 1) -> list[str]:
    """A consumer is given the next entries, and has had them for `idle_ms`."""
    given = stream.client.xreadgroup(GROUP, "c1", {stream.name: ">"}, count=count)
    ids = [entry for entry, _ in given[0][1]]
    stream.client.execute_command("XCLAIM", stream.name, GROUP, "c1", 0, *ids, "IDLE", idle_ms)
    return ids


async def two_looks(database: Database, owner: Owner, number: int, **section: Any) -> list[Any]:
    """Two cycles, the takeover grace apart."""
    async with envelopes(database, **section) as outbox:
        first = await outbox.run()
        outbox.clock.pass_(outbox.looks.grace_s + 1)
        owner.rows("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp() WHERE id = %s", number)
        return [first, await outbox.run()]


def lines(owner: Owner) -> tuple[int, int]:
    """How many lines the ledger and the audit have of the domain."""
    return (
        owner.value("SELECT count(*) FROM pfsup.recovery WHERE domain = 'envelope'"),
        owner.value("SELECT count(*) FROM pfsup.audit WHERE domain = 'envelope'"),
    )


async def test_entry_that_waits_in_its_stream_is_no_candidate(database: Database, owner: Owner, stream: Stream):
    """However long the queue is: nothing is examined, no ledger line is written, the next look is minutes away."""
    numbers = [stream.deliver() for _ in range(30)]
    due(owner, *numbers, sent_ago="3 days")
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert (report.examined, report.waiting, report.looked_at) == (0, 0, 30)
    assert {owner.status(number) for number in numbers} == {"sent"}
    assert lines(owner) == (0, 0)
    assert owner.value("SELECT min(check_at) > clock_timestamp() + interval '4 minutes' FROM pfsup.async_dispatches"), (
        "it paces itself by its age, to five minutes at most"
    )


async def test_entry_of_a_stream_without_a_group_waits(database: Database, owner: Owner, stream: Stream):
    number = stream.deliver()
    stream.client.xgroup_destroy(stream.name, GROUP)
    due(owner, number)
    async with envelopes(database) as outbox:
        assert (await outbox.run()).examined == 0
    assert owner.status(number) == "sent"


async def test_row_younger_than_the_grace_is_not_looked_at(database: Database, owner: Owner, stream: Stream):
    number = stream.deliver()
    stream.client.xdel(stream.name, *[entry for entry, _ in stream.client.xrange(stream.name)])
    due(owner, number, sent_ago="30 seconds")
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert report.examined == 0
    assert owner.value("SELECT check_at = sent_at + interval '60 s' FROM pfsup.async_dispatches WHERE id = %s", number)


async def test_entry_that_a_consumer_was_just_given_is_still_running(database: Database, owner: Owner, stream: Stream):
    number = stream.deliver()
    take_up(stream, idle_ms=20_000)
    due(owner, number)
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert report.decisions == {Decision.STILL_RUNNING: 1}
    assert owner.status(number) == "sent"
    wait_s = owner.value(
        "SELECT extract(epoch FROM check_at - clock_timestamp()) FROM pfsup.async_dispatches WHERE id = %s", number
    )
    assert 30 < wait_s <= 40, "looked at again when the grace is over"


async def test_entry_that_lies_too_long_with_its_consumer_is_sent_anew(
    database: Database, owner: Owner, stream: Stream
):
    """The consumer died between reading and begin_work."""
    number = stream.deliver()
    take_up(stream, idle_ms=61_000)
    due(owner, number)
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert report.decisions == {Decision.REDISPATCH: 1}
    row = owner.row(number)
    assert (row.status, row.recoveries, row.attempts, row.send_attempts) == ("pending", 0, 0, 0)
    assert stream.is_empty(), "the old entry is gone after the commit"


async def test_entry_acknowledged_and_never_begun_is_sent_anew(database: Database, owner: Owner, stream: Stream):
    number = stream.deliver()
    (entry,) = take_up(stream)
    stream.client.xack(stream.name, GROUP, entry)
    due(owner, number)
    async with envelopes(database) as outbox:
        await outbox.run()
    assert owner.status(number) == "pending"


async def test_entry_that_somebody_deleted_is_sent_anew(database: Database, owner: Owner, stream: Stream):
    number, other = stream.deliver(), stream.deliver()
    stream.client.xdel(stream.name, stream.client.xrange(stream.name)[0][0])
    due(owner, number, other)
    async with envelopes(database) as outbox:
        await outbox.run()
    assert (owner.status(number), owner.status(other)) == ("pending", "sent")


async def test_entry_of_another_dispatch_is_not_ours(database: Database, owner: Owner, stream: Stream):
    """Ids recur after a restore: the entry under our id must carry our dispatch_id."""
    number = owner.stage(actor="paint", queue="paint")
    entry = stream.write(number + 1000)
    owner.mark(number, sink_ref=f"{stream.name} {entry}")
    due(owner, number)
    async with envelopes(database) as outbox:
        await outbox.run()
    assert owner.status(number) == "pending"


@pytest.mark.parametrize("loss", ["missing", "younger"])
async def test_lost_stream_is_left_to_dispatch(database: Database, owner: Owner, stream: Stream, loss: str):
    """One event, not 50,000 doubts (DESIGN 4.10): nothing is examined, nothing written."""
    number = stream.deliver()
    stream.client.delete(stream.name)
    if loss == "younger":
        stream.client.xadd(stream.name, {"v": "1"}, id="5-1")
    due(owner, number)
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert report.examined == 0
    assert owner.status(number) == "sent"
    assert lines(owner) == (0, 0)


async def test_redis_away_is_no_decision_and_lost_runs_are_judged_all_the_same(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    sent, run = stream.deliver(), stream.deliver()
    worker.begun(run)
    due(owner, sent)
    lose(owner, run)
    away = values.Redis(url="unix:///nowhere/redis.sock", socket_timeout=1.0)
    async with envelopes(database, redis=away) as outbox:
        with pytest.raises(broker.RedisError):
            await outbox.run()
        outbox.clock.pass_(outbox.looks.grace_s + 1)
        owner.rows("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp()")
        with pytest.raises(broker.RedisError):
            await outbox.run()
    assert (owner.status(sent), owner.status(run)) == ("sent", "pending")


async def test_row_without_a_readable_entry_is_a_named_error_in_the_ledger(
    database: Database, owner: Owner, stream: Stream
):
    bad, good = owner.sent(actor="paint", queue="paint"), stream.deliver()
    owner.rows("UPDATE pfsup.async_dispatches SET sink_ref = 'nonsense' WHERE id = %s", bad)
    take_up(stream, idle_ms=61_000)
    due(owner, bad, good)
    async with envelopes(database) as outbox:
        report = await outbox.run()
        assert len(report.errors) == 1
        due(owner, bad)
        assert (await outbox.run()).idle, "it sleeps in the ledger"
    assert (owner.status(bad), owner.status(good)) == ("sent", "pending")
    assert "sink_ref" in owner.value("SELECT last_reason FROM pfsup.recovery WHERE candidate_id = %s", str(bad))


async def test_message_that_was_sent_anew_backs_off_and_is_never_killed(
    database: Database, owner: Owner, stream: Stream
):
    """60 s, 120 s, … an hour: consumers that acknowledge and drop cost little, and the row stays."""
    number = owner.stage(actor="paint", queue="paint")
    waits: list[float] = []
    async with envelopes(database) as outbox:
        for _ in range(8):
            stream.deliver_again(number)
            (entry,) = take_up(stream)
            stream.client.xack(stream.name, GROUP, entry)
            due(owner, number, sent_ago="2 hours")
            owner.rows("UPDATE pfsup.recovery_ledger SET next_check_at = clock_timestamp()")
            assert (await outbox.run()).decisions == {Decision.REDISPATCH: 1}
            waits.append(
                owner.value(
                    "SELECT extract(epoch FROM next_check_at - updated_at) FROM pfsup.recovery WHERE candidate_id = %s",
                    str(number),
                )
            )
    assert [round(wait_s) for wait_s in waits] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert (owner.row(number).status, owner.row(number).recoveries) == ("pending", 0)


async def test_run_under_a_live_lease_is_paced_to_its_end_and_no_candidate(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    worker.begun(number)
    owner.rows(
        "UPDATE pfsup.async_dispatches SET check_at = clock_timestamp(), started_at = started_at - interval '9 h'"
    )
    async with envelopes(database) as outbox:
        report = await outbox.run()
    assert (report.examined, report.looked_at) == (0, 1)
    assert owner.value("SELECT check_at = lease_expires_at FROM pfsup.async_dispatches WHERE id = %s", number)


@pytest.mark.parametrize("effect", [None, "void"])
async def test_lost_run_without_an_effect_is_sent_anew_at_the_second_look(
    database: Database, owner: Owner, worker: Worker, stream: Stream, effect: str | None
):
    number = stream.deliver()
    run = worker.begun(number)
    if effect:
        worker.effect(run, "begun")
        worker.effect(run, effect)
    lose(owner, number)
    first, second = await two_looks(database, owner, number)
    assert (first.decisions, second.decisions) == ({Decision.STILL_RUNNING: 1}, {Decision.REDISPATCH: 1})
    row = owner.row(number)
    assert (row.status, row.recoveries, row.lease_token) == ("pending", 1, None)


async def test_healthy_worker_that_beats_between_the_looks_keeps_its_row(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    """The database was away longer than the lease; the beat comes with its return."""
    number = stream.deliver()
    run = worker.begun(number)
    lose(owner, number)
    async with envelopes(database) as outbox:
        await outbox.run()
        assert worker.beat(run).verdict == "ok"
        lose(owner, number)
        outbox.clock.pass_(outbox.looks.grace_s + 1)
        assert (await outbox.run()).decisions == {Decision.STILL_RUNNING: 1}
    assert worker.settle(run, "consumed").verdict == "ok"


async def test_broken_connection_between_the_looks_makes_the_next_look_the_first(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    worker.begun(number)
    lose(owner, number)
    async with envelopes(database) as outbox:
        await outbox.run()
        outbox.clock.pass_(outbox.looks.grace_s + 1)
        outbox.looks.broken()
        owner.rows("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp()")
        assert (await outbox.run()).decisions == {Decision.STILL_RUNNING: 1}
    assert owner.status(number) == "running"


async def test_lost_run_with_an_effect_begun_is_unknown_and_its_late_worker_is_refused(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    run = worker.begun(number)
    worker.effect(run, "begun")
    lose(owner, number)
    _, second = await two_looks(database, owner, number)
    assert second.decisions == {Decision.OUTCOME_UNKNOWN: 1}
    row = owner.row(number)
    assert (row.status, row.effect) == ("unknown", "begun")
    assert owner.value("SELECT state FROM pfsup.dispatch_effects WHERE dispatch_id = %s", number) == "unknown"
    with pytest.raises(psycopg.Error, match="no longer holds it"):
        worker.settle(run, "consumed")
    assert owner.value("SELECT who FROM pfsup.audit WHERE dispatch_id = %s", number) == "domain envelope"


async def test_lost_run_with_an_effect_begun_is_sent_anew_where_its_actor_allows_it(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    owner.policy("paint", on_lost="redispatch", queue="paint")
    number = stream.deliver()
    worker.effect(worker.begun(number), "begun")
    lose(owner, number)
    await two_looks(database, owner, number)
    assert owner.status(number) == "pending"


async def test_lost_run_with_an_effect_done_hands_it_to_the_next_run(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    run = worker.begun(number)
    worker.effect(run, "begun")
    worker.effect(run, "done", ref="provider-7")
    lose(owner, number)
    await two_looks(database, owner, number)
    owner.claim(number)
    stream.deliver_again(number)
    begun = worker.begin(number)
    assert (begun.verdict, begun.effect, begun.effect_ref, begun.recoveries) == ("go", "done", "provider-7", 1)


@pytest.mark.parametrize("sink_ref", [None, "no entry's id", " 1-1", "stream 1-1-1"])
async def test_lost_run_without_the_place_of_its_entry_is_sent_anew(
    database: Database, owner: Owner, worker: Worker, sink_ref: str | None
):
    """A worker that overtook the mark need not say where it read its message."""
    number = owner.stage()
    owner.claim(number)
    worker.begun(number)
    owner.rows("UPDATE pfsup.async_dispatches SET sink_ref = %s WHERE id = %s", sink_ref, number)
    lose(owner, number)
    _, second = await two_looks(database, owner, number)
    assert (second.decisions, second.errors) == ({Decision.REDISPATCH: 1}, [])
    assert owner.status(number) == "pending"


async def test_silent_redis_is_asked_once_a_cycle_to_remove_entries(
    database: Database, owner: Owner, worker: Worker, short_dir: Path
):
    """Lost runs need no Redis: a hundred of them must not wait for a hundred timeouts."""
    asked: list[asyncio.StreamWriter] = []

    async def accept(_: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        asked.append(client)

    numbers = [owner.sent() for _ in range(3)]
    for number in numbers:
        worker.begun(number)
        lose(owner, number)
    silent = await asyncio.start_unix_server(accept, path=short_dir / "silent")
    address = values.Redis(url=f"unix://{short_dir}/silent", socket_timeout=0.1)
    async with silent, envelopes(database, redis=address) as outbox:
        await outbox.run()
        outbox.clock.pass_(outbox.looks.grace_s + 1)
        owner.rows("UPDATE pfsup.async_dispatches SET check_at = clock_timestamp()")
        report = await outbox.run()
    assert report.decisions == {Decision.REDISPATCH: 3}
    assert len(asked) == 1


async def test_stream_that_redis_refuses_keeps_back_no_other(
    database: Database, owner: Owner, stream: Stream, own_redis: RedisServer
):
    """A right is missing on one stream: its rows wait, and the domain says so; the others are healed."""
    with redis_client(own_redis.url) as client:
        client.acl_setuser("narrow", enabled=True, nopass=True, commands=["+@all"], keys=["pfsup:*"])
        client.xadd("pfsup:pfsup:paint", {"dispatch_id": "0"}, id="5-0")
    healed, kept = owner.sent(), owner.stage()
    owner.mark(kept, sink_ref="others:paint 1-1")
    due(owner, healed, kept)
    address = values.Redis(url=own_redis.url.replace("unix://", "unix://narrow:x@"))
    async with envelopes(database, redis=address) as outbox:
        with pytest.raises(broker.NoPermissionError):
            await outbox.run()
    assert (owner.status(healed), owner.status(kept)) == ("pending", "sent")


async def test_entry_of_another_dispatch_stays(database: Database, owner: Owner, stream: Stream):
    """Where ours is gone, what stands in its place is somebody else's message."""
    number = owner.stage()
    owner.mark(number, sink_ref=f"{stream.name} {stream.write(number + 1)}")
    due(owner, number)
    async with envelopes(database) as outbox:
        assert (await outbox.run()).decisions == {Decision.REDISPATCH: 1}
    assert stream.length() == 1


async def test_task_that_kills_its_worker_every_time_ends_dead(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = owner.stage(actor="paint", queue="paint")
    ends: list[str] = []
    for _ in range(4):
        stream.deliver_again(number)
        worker.begun(number)
        lose(owner, number)
        await two_looks(database, owner, number, max_recoveries=3)
        ends.append(owner.status(number))
    assert ends == ["pending", "pending", "pending", "dead"]
    assert "3 recoveries did not help" in owner.row(number).last_error


async def test_run_past_its_deadline_is_lost_though_its_worker_beats(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    run = worker.begun(number)
    owner.rows(
        "UPDATE pfsup.async_dispatches SET deadline_at = clock_timestamp() - interval '1 s',"
        " check_at = clock_timestamp() WHERE id = %s",
        number,
    )
    await two_looks(database, owner, number)
    assert owner.status(number) == "pending"
    assert worker.beat(run).verdict == "late"


async def test_run_of_an_actor_with_a_domain_is_left_to_it(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    """One judge per row: only the business domain can tell what its phases prove."""
    number = owner.sent(actor="delivery", queue="paint")
    worker.begun(number, actor="delivery")
    lose(owner, number)
    async with envelopes(database, others=["delivery"]) as outbox:
        assert (await outbox.run()).looked_at == 0
    assert owner.status(number) == "running"


async def test_locked_rows_hide_none_behind_them_and_show_in_the_age(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    numbers = [stream.deliver() for _ in range(26)]
    take_up(stream, idle_ms=61_000, count=26)
    due(owner, *numbers[:25], sent_ago="2 hours")
    due(owner, numbers[25])
    async with envelopes(database, batch_size=25) as outbox:
        with psycopg.connect(database.url) as holder:
            holder.execute("SELECT FROM pfsup.async_dispatches WHERE id = ANY(%s) FOR UPDATE", [numbers[:25]])
            report = await outbox.run()
            assert owner.status(numbers[25]) == "pending"
            assert report.oldest_s > 7000, "a starving row becomes visible"
        await outbox.run()
    assert {owner.status(number) for number in numbers} == {"pending"}


async def test_row_that_is_locked_between_finding_and_judging_is_skipped(
    database: Database, owner: Owner, stream: Stream
):
    number = stream.deliver()
    take_up(stream, idle_ms=61_000)
    due(owner, number)
    gates = Gates()
    gates.hold("recheck")
    async with envelopes(database, points=gates) as outbox:
        cycle = asyncio.create_task(outbox.run())
        await gates.arrival("recheck")
        with psycopg.connect(database.url) as holder:
            holder.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", [number])
            gates.open("recheck")
            report = await cycle
    assert (report.locked, report.examined) == (1, 0)
    assert owner.status(number) == "sent"


async def test_row_that_a_worker_begins_meanwhile_has_moved_on(
    database: Database, owner: Owner, worker: Worker, stream: Stream
):
    number = stream.deliver()
    take_up(stream, idle_ms=61_000)
    due(owner, number)
    gates = Gates()
    gates.hold("recheck")
    async with envelopes(database, points=gates) as outbox:
        cycle = asyncio.create_task(outbox.run())
        await gates.arrival("recheck")
        run: Begun = worker.begun(number)
        gates.open("recheck")
        report = await cycle
    assert report.decisions == {Decision.MOVED_ON: 1}
    assert worker.settle(run, "consumed").verdict == "ok"


async def test_drain_is_checked_before_every_candidate(database: Database, owner: Owner, stream: Stream):
    numbers = [stream.deliver() for _ in range(3)]
    take_up(stream, idle_ms=61_000, count=3)
    due(owner, *numbers)
    async with envelopes(database) as outbox:
        outbox.drain.request(30)
        report = await outbox.run()
    assert (report.examined, report.complete) == (0, False)
