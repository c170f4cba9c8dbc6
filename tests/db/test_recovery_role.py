"""A recovery domain as a role: at its interval, on a wake, through a vanished table, paused, and until the drain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pfsup.config import values
from pfsup.domains.delivery import Delivery
from pfsup.domains.envelope import Envelope
from support.database import Database
from support.gates import Gates
from support.link import TestLink, at_work
from support.productflow import productflow_database
from support.recovery import domain_settings
from support.rows import Rows, rows_of
from support.servers import PgServer
from support.waiting import auntil

HOUR_S = 3600.0


def settings(database: Database, **section: Any) -> values.Settings:
    return domain_settings(database, "delivery", **({"interval": HOUR_S} | section))


def link() -> TestLink:
    return TestLink(name="delivery")


async def test_first_cycle_comes_at_the_start_and_tells_what_it_did(productflow: Database, rows: Rows):
    rows.delivery(status="queued")
    said = link()
    async with at_work(Delivery(settings(productflow), "delivery"), said):
        await auntil(lambda: said.figures, what="the first report")
    assert (said.figures["examined"], said.figures["redispatch"], said.figures["effective_ratio"]) == (1, 1, 1.0)
    assert said.figures["drain_s"] == HOUR_S
    assert said.woken_peers == ["dispatch"], "it works without LISTEN too"


async def test_idle_cycle_wakes_nobody(productflow: Database):
    said, gates = link(), Gates()
    async with at_work(Delivery(settings(productflow), "delivery", points=gates), said):
        await gates.arrival("cycle")
    assert said.woken_peers == []


async def test_full_batch_waits_for_its_interval_and_a_wake_does_not(productflow: Database, rows: Rows):
    """Dispatch goes on while its batch is full; recovery never does (seed 000, section 5.2)."""
    for _ in range(3):
        rows.delivery(status="queued")
    said, gates = link(), Gates()
    async with at_work(Delivery(settings(productflow, batch_size=1), "delivery", points=gates), said):
        facts = await gates.arrival("cycle")
        assert facts["report"].has_more
        await auntil(lambda: said.phases[-1] == "idle", what="it rests")
        assert gates.count("cycle") == 1
        said.wake.wake()
        await gates.arrival("cycle", 2)


async def test_held_cycle_is_entered_once_and_ends_with_the_drain(productflow: Database, rows: Rows):
    """Ticks and wakes during a cycle start no second one."""
    rows.delivery(status="queued")
    said, gates = link(), Gates()
    gates.hold("recheck")
    async with at_work(Delivery(settings(productflow, interval=0.05), "delivery", points=gates), said):
        await gates.arrival("recheck")
        said.wake.wake()
        said.drain.request(30)
        gates.open("recheck")
    assert gates.count("cycle") == 1


async def test_vanished_table_is_waited_for_with_its_remedy(productflow: Database, rows: Rows):
    said, gates = link(), Gates()
    async with at_work(Delivery(settings(productflow), "delivery", points=gates), said) as task:
        await gates.arrival("cycle")
        rows.all("ALTER TABLE productflow.delivery_jobs RENAME TO gone")
        said.wake.wake()
        await auntil(lambda: said.reason is not None, what="it says what it waits for")
        assert "pfsup migrate --with productflow" in str(said.reason)
        assert not task.done()
        rows.all("ALTER TABLE productflow.gone RENAME TO delivery_jobs")
        job = rows.delivery(status="queued")
        said.wake.wake()
        await gates.arrival("cycle", 2)
    assert said.reason is None
    assert rows.envelope(f"delivery:{job}").status == "pending"


async def test_missing_tables_at_the_start_are_a_waiting_state(database: Database):
    """The reference tables were never made: the child stays up and says what to run."""
    said = link()
    async with at_work(Delivery(settings(database), "delivery"), said, ready=False):
        await auntil(lambda: said.reason is not None, what="it says what it waits for")
        assert "pfsup migrate --with productflow" in str(said.reason)
    assert not said.is_ready


async def test_table_of_another_owner_is_named_in_what_the_domain_waits_for(productflow: Database, rows: Rows):
    rows.all("REVOKE ALL ON productflow.delivery_jobs FROM pfsup_run")
    said = link()
    async with at_work(Delivery(settings(productflow), "delivery"), said, ready=False):
        await auntil(lambda: said.reason is not None, what="it says what it waits for")
        assert "permission denied for table delivery_jobs" in str(said.reason)
        assert "GRANT" in str(said.reason)


async def test_paused_domain_does_nothing_and_says_who_paused_it(productflow: Database, rows: Rows):
    job = rows.delivery(status="queued")
    rows.all("SELECT pfsup.pause('domain', 'delivery', 'ada', 'the renderer is being moved')")
    said = link()
    async with at_work(Delivery(settings(productflow), "delivery"), said):
        await auntil(lambda: said.figures, what="it says that it is paused")
        assert said.figures == {"paused": "ada: the renderer is being moved"}
        assert rows.envelopes(f"delivery:{job}") == []
        rows.all("SELECT pfsup.resume('domain', 'delivery', 'ada', 'moved')")
        said.wake.wake()
        await auntil(lambda: rows.envelopes(f"delivery:{job}"), what="it goes on")


async def test_lost_run_is_taken_by_the_role_itself(productflow: Database, rows: Rows):
    """Two looks over real time: the grace is short, the order is what counts."""
    job = rows.delivery(status="running", envelope="lost")
    said = link()
    async with at_work(Delivery(settings(productflow, interval=0.1, takeover_grace=0.4), "delivery"), said):
        await auntil(lambda: rows.envelope(f"delivery:{job}").status == "pending", what="the run is taken back")
    decisions = rows.all("SELECT action FROM pfsup.audit WHERE subject = %s", f"delivery:{job}")
    assert [row.action for row in decisions] == ["redispatch"]


async def test_outage_between_the_looks_takes_no_healthy_worker(own_pg: PgServer, redis_url: str, short_dir: Path):
    """The database stands still for longer than lease and grace; the worker's beat comes back with it."""
    with productflow_database(own_pg, redis_url=redis_url, directory=short_dir) as database, rows_of(database) as rows:
        job = rows.delivery(status="running", envelope="lost")
        said, gates = link(), Gates()
        tuned = settings(database, interval=0.1, takeover_grace=1.0)
        hasty = replace(tuned.database, statement_timeout=0.3, connect_timeout=0.3)
        async with at_work(Delivery(replace(tuned, database=hasty), "delivery", points=gates), said):
            await gates.arrival("cycle")
            own_pg.stop_frozen()
            try:
                await auntil(lambda: said.reason is not None, what="the outage is noticed")
            finally:
                own_pg.resume()
            rows.all("UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() + interval '1 minute'")
            await gates.arrival("cycle", gates.count("cycle") + 3)
        assert rows.envelope(f"delivery:{job}").status == "running"
        assert rows.row("delivery_jobs", job).status == "running"


async def test_connection_that_broke_under_the_cycle_makes_the_next_look_the_first(productflow: Database, rows: Rows):
    """The pool replaces it at once, so the next pulse finds nothing wrong: here it is a quarter of an hour away."""
    rows.delivery(status="running", envelope="lost")
    said, gates = link(), Gates()
    role = Delivery(settings(productflow, takeover_grace=HOUR_S), "delivery", points=gates)
    async with at_work(role, said):
        await gates.arrival("cycle")
        assert role.looks.open == 1
        with productflow.superuser() as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND usename = 't_run'"
            )
        said.wake.wake()
        await auntil(lambda: said.reason is not None, what="the cycle meets the broken connection")
        assert role.looks.open == 0


async def test_envelope_domain_tells_its_first_report(database: Database):
    said = TestLink(name="envelope")
    async with at_work(Envelope(domain_settings(database, "envelope"), "envelope"), said):
        await auntil(lambda: said.figures, what="the first report")
    assert said.figures["examined"] == 0
