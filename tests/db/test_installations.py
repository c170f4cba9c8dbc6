"""Two installations beside each other: two schemas in one database, two names, and entries that meet the wrong one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pfsup
import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from pfsup.domains.housekeeping import Housekeeping
from pfsup.shared.db.migrate import migrate
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database, fresh_database
from support.gates import Gates
from support.link import TestLink, at_work
from support.messages import serving
from support.servers import PgServer, redis_client
from support.waiting import auntil

NAMES = ("one", "two")


@pytest.fixture
def shared(pg_server: PgServer, redis_url: str, short_dir: Path) -> Generator[Database]:
    """One database in which schemas `one` and `two` are migrated, each with its own roles."""
    with fresh_database(pg_server, redis_url=redis_url, directory=short_dir, schema=None) as made:
        for name in NAMES:
            migrate(made.url, schema=name)
            pg_server.grant_logins(name)
        yield made


def settings_of(shared: Database, name: str, **dispatch: Any) -> values.Settings:
    base = shared.settings(dispatch=values.Dispatch(**dispatch))
    return replace(base, database=replace(base.database, schema=name), supervisor=replace(base.supervisor, name=name))


def put(shared: Database, schema: str, count: int) -> list[int]:
    with psycopg.connect(shared.app_url) as conn:
        return [pfsup.stage(conn, "mail", str(n), schema, schema=schema).id for n in range(count)]


def rows(shared: Database, schema: str) -> list[tuple[Any, ...]]:
    query = f"SELECT status, count(*) FROM {schema}.async_dispatches GROUP BY 1 ORDER BY 1"
    with shared.superuser() as conn:
        return conn.execute(query.encode()).fetchall()


def mailer(shared: Database, schema: str, *, name: str, done: list[tuple[str, int, Any]]) -> Worker:
    """A worker of `schema` that reads the streams of `name`."""
    database = values.Database(url=shared.worker_url, schema=schema)
    worker = Worker(database=database, redis=shared.redis_url, queues=["mail"], name=name)

    @worker.actor("mail")
    async def mail(task: Task) -> None:  # pyright: ignore[reportUnusedFunction] - registered
        done.append((schema, task.id, task.payload))

    return worker


async def test_two_schemas_in_one_database_go_their_ways_apart(shared: Database) -> None:
    """The same ids, actors and queues in both; each dispatcher, worker and housekeeper meets its own only."""
    done, gates = list[tuple[str, int, Any]](), Gates()
    one, two = (settings_of(shared, name, scan_interval=3600.0) for name in NAMES)
    link = TestLink(instance="two")
    async with (
        at_work(Dispatch(one, "dispatch"), TestLink(instance="one")),
        at_work(Dispatch(two, "dispatch", points=gates), link),
        at_work(Housekeeping(two, "housekeeping"), TestLink(name="housekeeping", instance="two")),
        serving(mailer(shared, "one", name="one", done=done)),
        serving(mailer(shared, "two", name="two", done=done)),
    ):
        await auntil(lambda: link.wake.wakes >= 1 and not link.wake.is_set)
        await gates.arrival("resting")
        seen = link.wake.wakes
        ids = put(shared, "one", 20)
        await auntil(lambda: rows(shared, "one") == [("consumed", 20)])
        assert link.wake.wakes == seen  # a commit of the one wakes nobody of the other
        assert put(shared, "two", 20) == ids
        await auntil(lambda: rows(shared, "two") == [("consumed", 20)])
    assert sorted(done) == [(name, number, name) for name in NAMES for number in ids]


async def test_entries_of_another_installation_under_the_same_name_start_nothing(shared: Database) -> None:
    """Both use the name pfsup, so the worker of two is given the entries of one, whose ids exist in two as well."""
    done = list[tuple[str, int, Any]]()
    settings = settings_of(shared, "one")
    settings = replace(settings, supervisor=replace(settings.supervisor, name="pfsup"))
    ids = put(shared, "one", 3)
    assert put(shared, "two", 3) == ids
    async with at_work(Dispatch(settings, "dispatch"), TestLink()):
        await auntil(lambda: rows(shared, "one") == [("sent", 3)])
    with redis_client(shared.redis_url) as client:
        async with serving(mailer(shared, "two", name="pfsup", done=done)):
            await auntil(lambda: client.xpending("pfsup:pfsup:mail", "pfsup")["pending"] == 3)
        assert client.xlen("pfsup:pfsup:mail") == 3  # left for whom they are meant
    assert done == []
    assert (rows(shared, "one"), rows(shared, "two")) == ([("sent", 3)], [("pending", 3)])


async def test_entries_from_before_a_restore_start_nothing(database: Database) -> None:
    """A restored database counts its epoch on; what the streams still hold is of a past that did not happen."""
    done = list[int]()
    worker = Worker(database=database.worker_url, redis=database.redis_url, queues=["mail"])

    @worker.actor("mail")
    async def mail(task: Task) -> None:
        done.append(task.id)

    with psycopg.connect(database.app_url) as conn:
        staged = pfsup.stage(conn, "mail", "1")
    async with at_work(Dispatch(database.settings(), "dispatch"), TestLink()):
        await auntil(lambda: status_of(database, staged.id) == "sent")
    with database.superuser() as conn:
        conn.execute("UPDATE pfsup.meta SET epoch = epoch + 1")
    with redis_client(database.redis_url) as client:
        async with serving(worker):
            await auntil(lambda: client.xpending("pfsup:pfsup:mail", "pfsup")["pending"] == 1)
    assert (done, status_of(database, staged.id)) == ([], "sent")


def status_of(database: Database, number: int) -> str:
    with database.superuser() as conn:
        row = conn.execute("SELECT status FROM pfsup.async_dispatches WHERE id = %s", [number]).fetchone()
    return str(row and row[0])
