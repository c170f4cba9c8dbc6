"""The listener: a hint that heals. Whatever happens to it, rows go out within the scan interval."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pfsup.config import values
from pfsup.domains.dispatch import Dispatch
from pfsup.shared.db.connect import aconnect, connect, fetch
from pfsup.shared.db.listen import Listener, channel
from pfsup.shared.drain import Drain
from support.database import Database
from support.link import TestLink, at_work
from support.outbox import stage, statuses
from support.pooler import pgbouncer
from support.tls import free_port
from support.waiting import auntil


def listeners(database: Database) -> list[int]:
    """The backends that wait for notifications: their last statement was LISTEN or the liveness query."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pfsup:%'"
        " AND query ~ '^(LISTEN|SELECT 1$)'"
    )
    with database.superuser() as conn:
        return [row[0] for row in conn.execute(query).fetchall()]


def settings_of(database: Database, **dispatch: Any) -> values.Settings:
    return database.settings(dispatch=values.Dispatch(**dispatch))


async def test_listener_comes_back_after_its_backend_was_terminated_and_scans_once(database: Database):
    link = TestLink()
    async with at_work(Dispatch(settings_of(database, scan_interval=3600.0), "dispatch"), link):
        (first,) = await auntil(lambda: listeners(database))
        await auntil(lambda: link.wake.wakes)
        with database.superuser() as conn:
            conn.execute("SELECT pg_terminate_backend(%s)", (first,))
            conn.execute("ALTER TABLE pfsup.async_dispatches DISABLE TRIGGER wake")
        stage(database)  # nothing announces it: only the scan after the reconnection can find it
        await auntil(lambda: statuses(database) == {"sent": 1})
        assert await auntil(lambda: [pid for pid in listeners(database) if pid != first])


async def test_rows_go_out_within_the_scan_interval_while_listen_is_refused(database: Database):
    link = TestLink()
    settings = settings_of(database, scan_interval=0.1)
    nowhere = replace(settings.database, listen_url="postgresql://t_run@/postgres?host=/nowhere")
    async with at_work(Dispatch(replace(settings, database=nowhere), "dispatch"), link):
        stage(database)
        await auntil(lambda: statuses(database) == {"sent": 1})
        await auntil(lambda: "nobody listens" in str(link.figures.get("listen")))


async def test_listener_notices_a_backend_that_says_nothing_any_more(own_database: Database):
    """SIGSTOP leaves the connection open: without the query and its deadline nothing would ever be noticed."""
    drain, wakes = Drain(), list[int]()

    async def notify() -> None:
        conn = await aconnect(own_database.settings().database, application_name="probe", autocommit=True)
        await conn.execute("SELECT pg_notify(%s, '')", (channel(own_database.settings().database),))
        await conn.close()

    listener = Listener(
        own_database.settings().database,
        application_name="pfsup:test:1",
        wake=lambda: wakes.append(1),
        notify=notify,
        liveness_s=0.1,
    )
    task = asyncio.create_task(listener.run(drain))
    try:
        await auntil(lambda: wakes)
        (pid,) = listeners(own_database)
        os.kill(pid, signal.SIGSTOP)
        try:
            await auntil(lambda: listener.state.startswith("lost"), what="it is noticed")
            await auntil(lambda: listener.state == "listening", what="a new connection listens")
        finally:
            os.kill(pid, signal.SIGCONT)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(params=["refuses options", "drops options"])
def pooled(request: pytest.FixtureRequest, database: Database, short_dir: Path) -> Generator[str]:
    """The address of a PgBouncer before the database that pools transactions."""
    extra = "ignore_startup_parameters = options" if request.param == "drops options" else ""
    with pgbouncer(database, short_dir, port=free_port(), extra=extra) as url:
        yield url


async def test_behind_a_transaction_pooler_dispatch_polls_and_says_so(database: Database, pooled: str):
    link = TestLink()
    settings = settings_of(database, scan_interval=0.1)
    behind = replace(settings.database, url=pooled, listen_url="")
    async with at_work(Dispatch(replace(settings, database=behind), "dispatch"), link):
        stage(database, count=3)
        await auntil(lambda: statuses(database) == {"sent": 3})
        await auntil(lambda: "transaction pooler" in str(link.figures.get("listen")))
        stage(database)
        await auntil(lambda: statuses(database) == {"sent": 4})


async def test_behind_a_transaction_pooler_the_limits_hold_in_every_transaction(database: Database, pooled: str):
    behind = replace(database.settings().database, url=pooled, statement_timeout=1.5)
    conn = await aconnect(behind, application_name="pfsup:test:1", autocommit=True)
    try:
        assert conn.pooled
        query = b"SELECT current_setting('statement_timeout'), current_setting('transaction_isolation')"
        assert await fetch(conn, query) == [("1500ms", "read committed")]
    finally:
        await conn.close()


def test_a_synchronous_connection_works_behind_a_transaction_pooler_too(database: Database, pooled: str):
    behind = replace(database.settings().database, url=pooled)
    with connect(behind, application_name="pfsup:test:1") as conn:
        row = conn.execute("SELECT current_setting('transaction_isolation')").fetchone()
    assert row == ("read committed",)


async def test_a_pinned_connection_ignores_what_its_role_inherits(database: Database):
    with database.superuser() as conn:
        conn.execute("ALTER ROLE t_run SET default_transaction_isolation = 'serializable'")
        conn.execute("ALTER ROLE t_run SET default_transaction_read_only = on")
    try:
        pinned = await aconnect(database.settings().database, application_name="pfsup:test:1", autocommit=True)
        names = ("transaction_isolation", "transaction_read_only", "jit", "statement_timeout", "lock_timeout")
        found = [(await fetch(pinned, b"SELECT current_setting(%s)", (name,)))[0][0] for name in names]
        await pinned.close()
        assert found == ["read committed", "off", "off", "5s", "2s"]
    finally:
        with database.superuser() as conn:
            conn.execute("ALTER ROLE t_run RESET ALL")


async def test_the_password_file_is_read_again_for_every_connection(database: Database, short_dir: Path):
    file = short_dir / "url"
    file.write_text("postgresql://t_run@/postgres?host=/nowhere\n")
    from_file = replace(database.settings().database, url="", url_file=str(file))
    with pytest.raises(psycopg.OperationalError):
        await aconnect(from_file, application_name="pfsup:test:1")
    file.write_text(database.run_url + "\n")
    await (await aconnect(from_file, application_name="pfsup:test:1")).close()
