"""A real `pfsup start` under load, killed -9 piece by piece: nothing is lost or charged, others do not notice."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pfsup
import psycopg
from support.database import Database
from support.servers import redis_client
from support.supervisor import Supervisor
from support.waiting import HANG_S, until

STREAM = "pfsup:pfsup:mail"


def config_of(database: Database) -> str:
    """Claims of the dead would wait for an hour: only taking them back can send them in time."""
    return (
        f'[database]\nurl = "{database.run_url}"\n[redis]\nurl = "{database.redis_url}"\n'
        '[dispatch]\nclaim_lease = "1h"\nbatch_size = 20\n'
    )


@contextmanager
def shop(database: Database) -> Generator[list[int]]:
    """Commits orders one after the other until the block ends; gives the ids of those that are committed."""
    committed: list[int] = []
    closed = threading.Event()

    def sell() -> None:
        with psycopg.connect(database.app_url) as conn:
            while not closed.is_set():
                staged = pfsup.stage(conn, "mail", str(len(committed)))
                conn.commit()
                committed.append(staged.id)

    seller = threading.Thread(target=sell)
    seller.start()
    try:
        yield committed
    finally:
        closed.set()
        seller.join(HANG_S)


def all_are_sent(database: Database, committed: list[int]) -> None:
    """Wait until every committed envelope is marked, and look at what it cost."""
    with database.superuser() as conn:
        counts = "SELECT count(*) FILTER (WHERE status = 'sent'), count(*), sum(send_attempts + attempts + recoveries)"
        until(lambda: conn.execute(counts + " FROM pfsup.async_dispatches").fetchone() == (len(committed),) * 2 + (0,))
    with redis_client(database.redis_url) as client:
        entries = client.xrange(STREAM)
    delivered = Counter(int(fields["dispatch_id"]) for _, fields in entries)
    assert set(delivered) == set(committed)


def test_dispatch_killed_again_and_again_loses_nothing_and_disturbs_nobody(database: Database) -> None:
    """Each time a new generation takes the claims of the dead one back; housekeeping is not touched."""
    with Supervisor(main=True, config=config_of(database)) as supervisor:
        supervisor.wait_ready()
        calm = supervisor.pid("housekeeping")
        with shop(database) as committed:
            for generation in range(1, 5):
                sold = len(committed)
                until(lambda sold=sold: len(committed) > sold + 50)
                os.kill(supervisor.pid("dispatch"), signal.SIGKILL)
                supervisor.wait_state("dispatch", "ready", generation=generation + 1)
        all_are_sent(database, committed)
        assert supervisor.pid("housekeeping") == calm


def test_supervisor_killed_under_load_takes_its_children_along_and_loses_nothing(database: Database) -> None:
    """The next start knows its lock is free, so the claims of the boot before are its own."""
    with shop(database) as committed, Supervisor(main=True, config=config_of(database)) as supervisor:
        supervisor.wait_ready()
        until(lambda: len(committed) > 100)
        supervisor.signal(signal.SIGKILL)
        supervisor.wait_exit()
        supervisor.start()
        supervisor.wait_ready()
        sold = len(committed)
        until(lambda: len(committed) > sold + 50)
        assert supervisor.stop() == 0
        supervisor.start()
        supervisor.wait_ready()
        sold = len(committed)
        until(lambda: len(committed) > sold + 50)
        supervisor_sees_all(database, committed)


def supervisor_sees_all(database: Database, committed: list[int]) -> None:
    """Everything that is committed by now leaves, while more is committed."""
    now = list(committed)
    with database.superuser() as conn:
        left = "SELECT count(*) FROM pfsup.async_dispatches WHERE id = ANY(%s) AND status <> 'sent'"
        until(lambda: conn.execute(left, [now]).fetchone() == (0,))
