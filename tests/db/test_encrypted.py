"""PostgreSQL and Redis over TLS with passwords: the whole way of a row, and what is said when something is refused.

The machine's servers: the wheels have no TLS.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from pfsup.domains.housekeeping import Housekeeping
from pfsup.shared.db.migrate import migrate
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database, fresh_database
from support.link import TestLink, at_work
from support.messages import serving
from support.outbox import stage, statuses
from support.tls import TlsPg, TlsRedis, make_certificate
from support.waiting import auntil

WRONG = "hunter2"


@pytest.fixture
def far(tls_pg: TlsPg, tls_redis: TlsRedis, short_dir: Path) -> Generator[Database]:
    """A migrated database on the server with TLS; its Redis has TLS too."""
    tls_redis.server.flush()
    with fresh_database(tls_pg.server, redis_url=tls_redis.url, directory=short_dir) as made:
        yield made


def settings_of(far: Database, tls_pg: TlsPg, **wrong: str | Path) -> values.Settings:
    url = tls_pg.url(far.name, "t_run", **wrong)  # pyright: ignore[reportArgumentType] - password or ca
    base = far.settings()
    return replace(base, database=replace(base.database, url=url))


async def test_row_goes_its_whole_way_over_tls_and_dispatch_listens(
    far: Database, tls_pg: TlsPg, tls_redis: TlsRedis
) -> None:
    settings, link = settings_of(far, tls_pg), TestLink()
    worker = Worker(database=tls_pg.url(far.name, "t_worker"), redis=tls_redis.url, queues=["mail"])
    done = list[int]()

    @worker.actor("mail")
    async def mail(task: Task) -> None:
        done.append(task.id)

    async with at_work(Dispatch(settings, "dispatch"), link), serving(worker):
        ids = stage(far, count=5)
        await auntil(lambda: statuses(far) == {"consumed": 5})
        await auntil(lambda: link.figures.get("listen") == "listening")
        encrypted = "SELECT bool_and(ssl), count(*) >= 3 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        with far.superuser() as conn:
            ours = " WHERE usename IN ('t_run', 't_worker') AND datname = current_database()"
            assert conn.execute(f"{encrypted}{ours}".encode()).fetchone() == (True, True)
    assert sorted(done) == ids


async def test_housekeeping_works_over_tls(far: Database, tls_pg: TlsPg) -> None:
    link = TestLink(name="housekeeping")
    async with at_work(Housekeeping(settings_of(far, tls_pg), "housekeeping"), link):
        await auntil(lambda: link.figures)


def test_migrate_works_over_tls(tls_pg: TlsPg, short_dir: Path) -> None:
    with fresh_database(tls_pg.server, redis_url="", directory=short_dir, schema=None) as empty:
        assert migrate(tls_pg.url(empty.name)).applied


REFUSALS = {
    "password": "PostgreSQL refuses this user or password; correct [database] url or url_file",
    "authority": "TLS with PostgreSQL failed; check sslmode and certificates in [database] url",
}


@pytest.mark.parametrize("wrong", REFUSALS)
async def test_refused_connection_is_a_waiting_state_with_the_remedy(
    far: Database, tls_pg: TlsPg, short_dir: Path, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="pfsup")
    given = {"password": WRONG} if wrong == "password" else {"ca": make_certificate(short_dir, "stranger").cert}
    link = TestLink()
    async with at_work(Dispatch(settings_of(far, tls_pg, **given), "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
        assert link.reason == REFUSALS[wrong]
        assert not link.is_ready
    assert WRONG not in caplog.text


async def test_password_that_is_corrected_in_its_file_ends_the_waiting(
    far: Database, tls_pg: TlsPg, short_dir: Path
) -> None:
    file, link = short_dir / "url", TestLink()
    file.write_text(tls_pg.url(far.name, "t_run", password=WRONG))
    base = far.settings()
    settings = replace(base, database=replace(base.database, url="", url_file=str(file)))
    async with at_work(Dispatch(settings, "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
        file.write_text(tls_pg.url(far.name, "t_run") + "\n")
        await auntil(lambda: link.is_ready)
        assert link.reason is None


@pytest.mark.parametrize("wrong", ["user", "password", "authority"])
async def test_refused_redis_is_a_waiting_state_and_costs_no_row(
    far: Database, tls_pg: TlsPg, tls_redis: TlsRedis, short_dir: Path, wrong: str
) -> None:
    bad = {
        "user": lambda: tls_redis.address(user="stranger"),
        "password": lambda: tls_redis.address(password=WRONG),
        "authority": lambda: tls_redis.address(ca=make_certificate(short_dir, "stranger").cert),
    }[wrong]()
    settings, link = settings_of(far, tls_pg), TestLink()
    settings = replace(settings, redis=values.Redis(url=bad))
    stage(far)
    async with at_work(Dispatch(settings, "dispatch"), link, ready=False):
        await auntil(lambda: link.reason)
        assert "[redis] url" in str(link.reason)
        assert WRONG not in str(link.reason)
    with far.superuser() as conn:
        assert conn.execute("SELECT status, send_attempts FROM pfsup.async_dispatches").fetchall() == [("pending", 0)]


@pytest.mark.parametrize("what", ["database", "redis"])
async def test_worker_with_a_wrong_password_waits_says_so_and_drains(
    far: Database, tls_pg: TlsPg, tls_redis: TlsRedis, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.DEBUG, logger="pfsup")
    url = tls_pg.url(far.name, "t_worker", password=WRONG if what == "database" else None)
    database = values.Database(url=url, connect_timeout=1.0)
    redis = tls_redis.address(password=WRONG if what == "redis" else None)
    worker = Worker(database=database, redis=redis, queues=["mail"])

    @worker.actor("mail")
    async def mail(task: Task) -> None: ...

    async with at_work(Dispatch(settings_of(far, tls_pg), "dispatch"), TestLink()):
        stage(far)
        await auntil(lambda: statuses(far) == {"sent": 1})
        async with serving(worker):
            remedy = f"refuses this user or password; correct [{what}] url"
            await auntil(lambda: remedy in caplog.text, what="the worker says what refuses it")
    assert statuses(far) == {"sent": 1}
    assert WRONG not in caplog.text


def test_application_that_stages_over_tls_needs_nothing_else(far: Database, tls_pg: TlsPg) -> None:
    with psycopg.connect(tls_pg.url(far.name, "t_app")) as conn:
        conn.execute("SELECT pfsup.stage('mail', '1')")
    assert statuses(far) == {"pending": 1}
