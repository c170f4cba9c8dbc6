"""`pfsup start` and real workers: from the application's commit to an empty stream, whatever surrounds them."""

from __future__ import annotations

import os
import signal
import subprocess

import pfsup
import psycopg
import pytest
from pfsup.config import values
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import serving
from support.outbox import column, leased, stage, statuses
from support.servers import RedisServer, redis_client
from support.supervisor import Supervisor
from support.waiting import auntil, until

STREAM = "pfsup:pfsup:mail"


def config_of(database: Database, *, redis: str = "", dispatch: str = "", more: str = "") -> str:
    """The two addresses; `redis` and `dispatch` are more keys of these sections, `more` more sections."""
    return (
        f'[database]\nurl = "{database.run_url}"\nmigrate_url = "{database.url}"\nschema = "{database.schema}"\n'
        f'[redis]\nurl = "{database.redis_url}"\n{redis}\n[dispatch]\n{dispatch}\n{more}\n'
    )


def length(database: Database) -> int:
    with redis_client(database.redis_url) as client:
        return int(client.xlen(STREAM))


def mailer(database: Database, done: list[int]) -> Worker:
    """A worker of queue `mail` that only notes what it did."""
    worker = Worker(database=database.worker_url, redis=database.redis_url, queues=["mail"], concurrency=20)

    @worker.actor("mail")
    async def mail(task: Task) -> None:  # pyright: ignore[reportUnusedFunction] - registered
        done.append(task.id)

    return worker


def operate(supervisor: Supervisor, database: Database, verb: str) -> int:
    """`pfsup pause|resume queue mail` as an operator; its exit code."""
    command = supervisor.command(verb, "queue", "mail", "--why", "test")
    environ = supervisor.environ | {"PFSUP_DATABASE__URL": database.operate_url}
    return subprocess.run(command, env=environ, capture_output=True, timeout=30, check=False).returncode


async def test_schema_of_another_name_goes_the_whole_way(empty_database: Database) -> None:
    """migrate, start, stage, worker, pause and resume, each as its own role; nothing is called pfsup."""
    section = f'url = "{empty_database.run_url}"\nmigrate_url = "{empty_database.url}"\nschema = "work_queue"\n'
    config = f'[database]\n{section}[redis]\nurl = "{empty_database.redis_url}"\n'
    worker = Worker(
        database=values.Database(url=empty_database.worker_url, schema="work_queue"),
        redis=empty_database.redis_url,
        queues=["mail"],
    )
    done = list[str]()

    @worker.actor("mail")
    async def mail(task: Task) -> None:
        async with task.effect():
            pass
        async with task.transaction() as conn:
            await conn.execute("SELECT 1")
        done.append(task.payload)

    with Supervisor(main=True, config=config) as supervisor:
        supervisor.wait_state("dispatch", "waiting")
        assert "run: pfsup migrate" in supervisor.child("dispatch")["waiting"]
        assert supervisor.cli("migrate").returncode == 0
        empty_database.server.grant_logins("work_queue")
        supervisor.wait_ready()
        assert supervisor.child("dispatch")["generation"] == 1
        assert supervisor.cli("check").returncode == 0
        async with serving(worker):
            with psycopg.connect(empty_database.app_url, autocommit=True) as app:
                assert pfsup.stage(app, "mail", "1", "a", delivery_key="k", schema="work_queue").outcome == "created"
                await auntil(lambda: done == ["a"])
                assert operate(supervisor, empty_database, "pause") == 0
                second = pfsup.stage(app, "mail", "2", "b", schema="work_queue")
                third = pfsup.stage(app, "other", "3", "c", schema="work_queue")
                state = "SELECT id FROM work_queue.async_dispatches WHERE status IN ('pending', 'sent') ORDER BY status"
                with empty_database.superuser() as conn:
                    await auntil(lambda: conn.execute(state).fetchall() == [(second.id,), (third.id,)])
                    assert operate(supervisor, empty_database, "resume") == 0
                    await auntil(lambda: done == ["a", "b"])
                    ours = "SELECT nspname FROM pg_namespace WHERE nspname IN ('pfsup', 'work_queue')"
                    assert conn.execute(ours).fetchall() == [("work_queue",)]


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
async def test_stream_of_finished_tasks_is_empty_behind_our_worker(database: Database, count: int) -> None:
    """Each entry goes with its settlement; housekeeping is not needed for it."""
    done = list[int]()
    with Supervisor(main=True, config=config_of(database)) as supervisor:
        supervisor.wait_ready()
        async with serving(mailer(database, done)):
            ids = stage(database, count=count)
            await auntil(lambda: len(done) >= count, within_s=count / 200 + 30)
            await auntil(lambda: length(database) == 0)
    assert (statuses(database), sorted(done)) == ({"consumed": count}, ids)
    assert column(database, "id", "deliveries <> 1 OR attempts + send_attempts <> 0") == []


def test_stream_is_empty_behind_a_consumer_that_only_acknowledges(database: Database) -> None:
    """completion = handover: the mark is the end of the row; what the consumer acknowledged, housekeeping removes."""
    count = 5_000
    more = '[housekeeping]\ninterval = "100ms"\n[actors.mail]\ncompletion = "handover"\n'
    with Supervisor(main=True, config=config_of(database, more=more)) as supervisor:
        supervisor.wait_ready()
        stage(database, count=count)
        seen = list[str]()
        until(lambda: length(database), what="dispatch has made stream and group")
        with redis_client(database.redis_url) as client:
            while len(seen) < count:
                got = client.xreadgroup("pfsup", "foreign", {STREAM: ">"}, count=1000, block=30_000)
                assert got, "no more entries came"
                seen += [fields["dispatch_id"] for _, fields in got[0][1]]
                client.xack(STREAM, "pfsup", *[entry for entry, _ in got[0][1]])
        until(lambda: length(database) == 0, what="housekeeping has removed what was acknowledged")
        until(lambda: statuses(database) == {"consumed": count})
    assert len(set(seen)) == count
    assert column(database, "id", "deliveries <> 1 OR attempts + send_attempts <> 0") == []


@pytest.mark.parametrize("how", ["notification", "wake from outside", "tick"])
def test_dispatch_goes_on_while_a_sibling_is_held_inside_its_work(database: Database, how: str) -> None:
    """The sibling blocks its whole process in one system call; neither it nor its drain can hold dispatch up."""
    interval, wake = ("100ms" if how == "tick" else "1h"), ("notify" if how == "notification" else "poll")
    config = config_of(database, dispatch=f'scan_interval = "{interval}"\nwake = "{wake}"')
    limits = {"beat_timeout": "10m", "stop_timeout": "2s"}
    with Supervisor(main=True, config=config, domains={"c": "children:StuckInC"}, supervisor=limits) as supervisor:
        supervisor.wait_ready()
        supervisor.ask("wake", name="c")
        supervisor.wait_mark("c", "woken")
        ids = stage(database, count=250)
        if how == "wake from outside":
            assert supervisor.cli("wake", "dispatch").returncode == 0
        until(lambda: statuses(database) == {"sent": len(ids)})
        assert [supervisor.child(name)["generation"] for name in ("c", "dispatch", "housekeeping")] == [1, 1, 1]
        assert supervisor.stop() == 4  # the held one had to be killed, and the exit code says so


def test_full_disk_under_the_log_loses_no_row(database: Database) -> None:
    """Every line of the parent and of dispatch is lost, and the work goes on; also in a new generation."""
    with Supervisor(main=True, config=config_of(database, more='[log]\nfile = "/dev/full"\n')) as supervisor:
        supervisor.wait_ready()
        stage(database, count=300)
        until(lambda: statuses(database) == {"sent": 300})
        os.kill(supervisor.pid("dispatch"), signal.SIGKILL)
        supervisor.wait_state("dispatch", "ready", generation=2)
        stage(database, count=300)
        until(lambda: statuses(database) == {"sent": 600})
        assert supervisor.own()["log_errors"] > 0
        assert supervisor.stop() == 0


def test_sigterm_with_sends_in_flight_marks_them_all_and_ends_with_0(
    database: Database, own_redis: RedisServer
) -> None:
    """Redis is frozen, so that batches hang in their send when the signal comes; it runs on during the drain."""
    config = config_of(database, dispatch="batch_size = 20").replace(database.redis_url, own_redis.url)
    with Supervisor(main=True, config=config.replace("[dispatch]", 'socket_timeout = "20s"\n[dispatch]')) as supervisor:
        supervisor.wait_ready()
        own_redis.stop_frozen()
        stage(database, count=500)
        until(lambda: leased(database) == 4 * 20, what="four batches are in flight")
        supervisor.signal(signal.SIGTERM)
        until(lambda: supervisor.child("dispatch")["state"] == "stopping")
        own_redis.resume()
        assert supervisor.wait_exit() == 0
    assert (statuses(database), leased(database)) == ({"sent": 80, "pending": 420}, 0)
    with own_redis.client() as client:
        delivered = sorted(int(fields["dispatch_id"]) for _, fields in client.xrange(STREAM))
    assert delivered == column(database, "id", "status = 'sent'")


def test_payload_inline_reaches_the_entry_and_the_worker_runs_with_the_rows_own(database: Database) -> None:
    """An entry is a copy that may be old: begin_work gives the payload that counts."""
    with Supervisor(main=True, config=config_of(database, redis='payload = "inline"')) as supervisor:
        supervisor.wait_ready()
        (one,) = stage(database, payload='{"n": 1}')
        until(lambda: statuses(database) == {"sent": 1})
    with redis_client(database.redis_url) as client, psycopg.connect(database.worker_url) as conn:
        ((_, message),) = client.xrange(STREAM)
        assert message["payload"] == '{"n": 1}'
        with pfsup.work(conn, dict(message) | {"payload": '{"n": 2}'}) as task:
            assert task is not None
            assert (task.id, task.payload) == (one, {"n": 1})
    assert statuses(database) == {"consumed": 1}


def test_start_tells_every_configuration_error_at_once_and_ends_with_78() -> None:
    bad = '[dispatch]\nbatch_size = "many"\nclaim_leese = "3s"\n[log]\nlevel = "loud"\n'
    with Supervisor(domains={"a": "children:Calm"}, start=False) as supervisor:
        text = supervisor.config_path.read_text()
        supervisor.config_path.write_text(text.replace("[dispatch]\nenabled = false\n", bad))
        done = supervisor.cli("start")
    assert done.returncode == 78
    for part in ("batch_size", "did you mean claim_lease?", "level"):
        assert part in done.stderr
    assert done.stdout == ""
