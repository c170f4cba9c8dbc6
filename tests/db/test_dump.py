"""A dump of a half-full outbox restores into an empty database and works on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pfsup.shared.db.migrate import LATEST, migrate
from support.database import Database
from support.programs import pg_program
from support.runs import Owner, owner_of, worker_of
from support.staging import app_of

TABLES = ("async_dispatches", "restaged", "dispatch_effects", "audit_log", "controls", "actors", "meta")


def content(owner: Owner) -> dict[str, list[str]]:
    return {
        table: [str(row[0]) for row in owner.rows(f"SELECT to_jsonb(t)::text FROM pfsup.{table} t ORDER BY 1")]
        for table in TABLES
    }


def fill(database: Database) -> None:
    """Rows in every status a day's work leaves."""
    with owner_of(database) as owner, worker_of(database) as worker:
        owner.policy("paint", queue="slow", max_attempts=3)
        owner.stage(key="waits", payload={"text": "é \\ \t 'quoted'"}, tenant="acme")
        owner.claim(owner.stage(key="claimed"))
        owner.sent(key="sent")
        run = worker.begun(owner.sent(key="runs"))
        worker.effect(run, "begun", "main", "ref-1")
        owner.stage(key="runs", payload={"v": 2})
        for outcome in ("consumed", "rejected", "dead", "unknown"):
            worker.settle(worker.begun(owner.sent(key=outcome)), outcome, "why")
        owner.rows("SELECT pfsup.pause('queue', 'other', 'ann', 'because')")


def test_dump_of_a_half_full_outbox_restores_whole_and_works_on(
    database: Database, empty_database: Database, short_dir: Path
) -> None:
    fill(database)
    dumped, psql = short_dir / "dump.sql", pg_program(database.server, "psql")
    subprocess.run([pg_program(database.server, "pg_dump"), "-f", str(dumped), database.url], check=True)
    subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dumped), empty_database.url],
        check=True,
        capture_output=True,
    )
    with owner_of(database) as before, owner_of(empty_database) as after:
        assert content(after) == content(before)
        assert migrate(empty_database.url).after == LATEST
        with app_of(empty_database) as app, worker_of(empty_database) as worker:
            assert app.stage(key="dead").outcome == "blocked"
            assert app.stage(key="runs").outcome == "rerun"
            fresh = app.stage(key="consumed")
            assert fresh.outcome == "created"
            after.mark(fresh.id)
            assert worker.begin(fresh.id).verdict == "go"
