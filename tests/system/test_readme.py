"""README's five steps on real servers: staged, dispatched, worked, settled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pfsup
import psycopg
from pfsup.shared.sinks.redis_stream import stream_name
from support import readme
from support.database import Database
from support.servers import redis_client
from support.supervisor import Supervisor
from support.waiting import until


def config_of(database: Database) -> str:
    """The two addresses, as README's step 2 has them."""
    return f'[database]\nurl = "{database.run_url}"\n[redis]\nurl = "{database.redis_url}"\n'


def shop_on(database: Database) -> None:
    """The application's table, which its workers may write."""
    with psycopg.connect(database.url) as conn:
        conn.execute("CREATE TABLE public.orders (id bigint PRIMARY KEY, mailed_as text)")
        conn.execute("GRANT ALL ON public.orders TO t_app, t_worker")


def stage_by_readme(database: Database) -> None:
    """Step 4."""
    with psycopg.connect(database.app_url) as conn:
        conn.execute(readme.snippet("sql").encode())


def test_five_steps_end_with_a_settled_task(database: Database, tmp_path: Path) -> None:
    """The supervisor sends what the application staged, and README's worker does it."""
    shop_on(database)
    program = tmp_path / "worker.py"
    program.write_text(
        readme.snippet("worker")
        .replace("postgresql:///app?host=/run/postgresql", database.worker_url)
        .replace("redis://127.0.0.1:6379/0", database.redis_url)
    )
    with Supervisor(main=True, config=config_of(database)) as supervisor:
        supervisor.wait_state("dispatch", "ready")
        worker = subprocess.Popen([sys.executable, program])
        try:
            stage_by_readme(database)
            with database.superuser() as conn:
                seen = "SELECT d.status, o.mailed_as, d.effect FROM pfsup.async_dispatches d JOIN orders o ON true"
                until(lambda: conn.execute(seen).fetchone() == ("consumed", "mail-1", "done"))
            worker.terminate()
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()


def test_sync_form_settles_in_the_caller_s_transaction(database: Database) -> None:
    """`pfsup.work` on a message read by hand."""
    shop_on(database)
    settings = database.settings()
    with Supervisor(main=True, config=config_of(database)) as supervisor:
        supervisor.wait_state("dispatch", "ready")
        stage_by_readme(database)
        with redis_client(database.redis_url) as client:
            stream = stream_name(settings, "send_invoice")
            until(lambda: client.xlen(stream))
            ((_, message),) = client.xrange(stream)  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    with psycopg.connect(database.worker_url) as conn:
        readme.run(readme.snippet("work"), conn=conn, message=message, pfsup=pfsup)
    with database.superuser() as conn:
        assert conn.execute("SELECT status FROM pfsup.async_dispatches").fetchone() == ("consumed",)
        assert conn.execute("SELECT mailed_as FROM public.orders").fetchone() == ("by hand",)
