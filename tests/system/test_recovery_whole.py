"""`pfsup start` with every domain: each a process and a pool of its own, so that one that is held holds nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import psycopg
import pytest
from support.database import Database
from support.outbox import stage, statuses
from support.rows import Rows, rows_of
from support.supervisor import Supervisor
from support.waiting import until

pytestmark = pytest.mark.timeout(120)
DOMAINS = ("workflow", "image_session", "delivery", "local_edit", "agent")


@pytest.fixture
def rows(productflow: Database) -> Generator[Rows]:
    with rows_of(productflow) as session:
        yield session


def config_of(database: Database, *, lock_timeout: str = "300ms", more: str = "") -> str:
    """All five domains, quick; a statement that waits for a lock gives up soon."""
    sections = "".join(f'[domains.{name}]\ninterval = "100ms"\ntakeover_grace = "300ms"\n' for name in DOMAINS)
    return (
        f'[database]\nurl = "{database.run_url}"\nmigrate_url = "{database.url}"\nlock_timeout = "{lock_timeout}"\n'
        f'[redis]\nurl = "{database.redis_url}"\n{sections}[domains.envelope]\ninterval = "100ms"\n{more}'
    )


def stuck_everywhere(rows: Rows) -> dict[str, str]:
    """One row of each domain that nobody works on, by the key of the envelope that it will get."""
    run = rows.insert("workflow_runs", graph_id="g", status="running", created_at="ago 3 hours")
    rows.insert("workflow_node_runs", run_id=run, node="a", status="running", phase="claimed")
    turn = rows.insert("agent_turns", conversation_id="c", status="queued", created_at="ago 3 hours")
    return {
        "delivery": f"delivery:{rows.delivery(status='queued')}",
        "local_edit": f"local_edit:{rows.local_edit(status='running', phase='claimed')}",
        "image_session": f"image_session:{rows.image_task(status='queued')}",
        "workflow": f"workflow:{run}",
        "agent": f"agent:{turn}",
    }


def waits_for_a_lock(database: Database, application_name: str) -> bool:
    with database.superuser() as conn:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        return conn.execute(query, [application_name]).fetchone() is not None


def has_envelope(rows: Rows, key: str) -> bool:
    return bool(rows.envelopes(key))


def test_every_domain_recovers_in_a_process_of_its_own_and_dispatch_sends_what_it_staged(
    productflow: Database, rows: Rows
):
    keys = stuck_everywhere(rows)
    with Supervisor(main=True, config=config_of(productflow)) as supervisor:
        supervisor.wait_ready()
        pids = {name: supervisor.pid(name) for name in (*DOMAINS, "envelope", "dispatch", "housekeeping")}
        assert len(set(pids.values())) == 8
        nice = {name: os.getpriority(os.PRIO_PROCESS, pid) for name, pid in pids.items()}
        assert all(nice[name] > nice["dispatch"] for name in (*DOMAINS, "envelope")), "new work goes first"
        until(lambda: statuses(productflow)["sent"] == 5, what="what five domains staged is sent")
        assert all(has_envelope(rows, key) for key in keys.values())
        names = rows.all("SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE usename = 't_run'")
        assert {f"pfsup:{name}:1" for name in DOMAINS} <= {row.name for row in names}
        assert supervisor.cli("stop").returncode == 0


def test_domain_that_is_held_by_a_lock_holds_neither_dispatch_nor_another_domain(productflow: Database, rows: Rows):
    """Seed 000, section 8: one domain stands inside its cycle; everything else goes on."""
    with Supervisor(main=True, config=config_of(productflow, lock_timeout="60s")) as supervisor:
        supervisor.wait_ready()
        with psycopg.connect(productflow.url) as holder:
            holder.execute("LOCK TABLE productflow.workflow_runs IN ACCESS EXCLUSIVE MODE")
            until(lambda: waits_for_a_lock(productflow, "pfsup:workflow:1"), what="workflow waits for the lock")
            delivery = rows.delivery(status="queued")
            (mail,) = stage(productflow)
            until(lambda: has_envelope(rows, f"delivery:{delivery}"), what="another domain recovers")
            until(
                lambda: rows.one("SELECT status FROM pfsup.async_dispatches WHERE id = %s", mail).status == "sent",
                what="new work is dispatched",
            )
            assert supervisor.child("workflow")["state"] == "ready"
        run = rows.insert("workflow_runs", graph_id="g", status="queued", created_at="ago 3 hours")
        until(lambda: has_envelope(rows, f"workflow:{run}"), what="the held domain goes on")


def test_business_table_that_vanishes_is_told_and_the_others_never_notice(productflow: Database, rows: Rows):
    with Supervisor(main=True, config=config_of(productflow)) as supervisor:
        supervisor.wait_ready()
        rows.all("ALTER TABLE productflow.image_tasks RENAME TO gone")
        waiting = supervisor.wait_state("image_session", "waiting")
        assert "pfsup migrate --with productflow" in waiting["waiting"]
        delivery = rows.delivery(status="queued")
        until(lambda: has_envelope(rows, f"delivery:{delivery}"), what="another domain recovers")
        rows.all("ALTER TABLE productflow.gone RENAME TO image_tasks")
        task = rows.image_task(status="queued")
        until(lambda: has_envelope(rows, f"image_session:{task}"), what="it comes back by itself")
        assert supervisor.child("image_session")["restarts"] == 0


def test_domain_that_is_killed_is_restarted_alone_and_goes_on(productflow: Database, rows: Rows):
    with Supervisor(main=True, config=config_of(productflow)) as supervisor:
        supervisor.wait_ready()
        before = {name: supervisor.pid(name) for name in (*DOMAINS, "dispatch")}
        os.kill(before["delivery"], signal.SIGKILL)
        supervisor.wait_state("delivery", "ready", generation=2)
        delivery = rows.delivery(status="queued")
        until(lambda: has_envelope(rows, f"delivery:{delivery}"), what="the restarted domain recovers")
        after = {name: supervisor.pid(name) for name in before}
        assert {name for name in before if before[name] != after[name]} == {"delivery"}


def test_disabled_domain_runs_nowhere_and_its_rows_stay(productflow: Database, rows: Rows):
    """Enable and disable a domain, live; meanwhile nobody else judges its rows."""
    with Supervisor(main=True, config=config_of(productflow)) as supervisor:
        supervisor.wait_ready()
        assert supervisor.cli("disable", "delivery").returncode == 0
        supervisor.wait_state("delivery", "disabled")
        delivery, edit = rows.delivery(status="queued"), rows.local_edit(status="queued")
        until(lambda: has_envelope(rows, f"local_edit:{edit}"), what="an enabled domain recovers")
        assert not has_envelope(rows, f"delivery:{delivery}")
        assert supervisor.cli("enable", "delivery").returncode == 0
        until(lambda: has_envelope(rows, f"delivery:{delivery}"), what="it recovers when enabled again")
