"""The product, its provider, healthy workers and ones that are to die, and recovery by hand.

Dispatch is the test: `send` writes a pending envelope's entry into one of two streams. Workers that are to die read
`doomed`, one that lives as long as the scene reads `healthy`: so a message goes to the one it is meant for, at once.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pfsup.supervisor.demo.product.app import App
from pfsup.supervisor.demo.product.desk import product_queries
from pfsup.supervisor.demo.provider import received

from .crash_cycles import LOOK_NOW, LOSSES, Recovering, recovery_of
from .crash_outside import provider
from .crash_workers import HeldAt, KilledAt, forked, run_to_its_end, work
from .database import Database
from .messages import Stream
from .productflow import productflow_database
from .rows import Rows, rows_of
from .runs import owner_of
from .servers import PgServer, RedisServer, redis_client
from .waiting import HANG_S, until

DOOMED, HEALTHY = "crash:doomed", "crash:healthy"
TABLES = {
    "delivery": "delivery_jobs",
    "local_edit": "local_edit_tasks",
    "image_session": "image_tasks",
    "workflow": "workflow_runs",
    "agent": "agent_turns",
}
ROUNDS = 6
BY_DEFAULT = ("delivery", "workflow", "envelope")
IN_TRANSACTION = (
    b"SELECT FROM pg_stat_activity"
    b" WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
)


def by_default(kind: str) -> Any:
    """The kind as a test's parameter: three of them run with every change, the others in the slow matrix."""
    return kind if kind in BY_DEFAULT else pytest.param(kind, marks=pytest.mark.long)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scene:
    """One database with the product, its provider, and a healthy worker."""

    database: Database
    rows: Rows
    app: App
    doomed: Stream
    healthy: Stream
    socket: Path
    log: Path
    recovery: Recovering
    source: str
    entries: Iterator[int]
    watch: psycopg.Connection[Any]  # the superuser's: only that one sees what other sessions do

    def send(self, to: Stream) -> int:
        """Write the entries of all pending envelopes into a stream, as dispatch does; how many."""
        pending = self.rows.all("SELECT id, actor FROM pfsup.async_dispatches WHERE status = 'pending' ORDER BY id")
        for row in pending:
            self._deliver(to, row.id, row.actor)
        return len(pending)

    def _deliver(self, to: Stream, number: int, actor: str) -> None:
        """The mark before the message: nobody can be faster than it."""
        entry = f"{next(self.entries)}-1"
        to.owner.mark(number, sink_ref=f"{to.name} {entry}")
        fields = {"v": "1", "dispatch_id": str(number), "source": self.source, "actor": actor, "headers": "{}"}
        to.client.xadd(to.name, fields, id=entry)

    def send_twice(self, number: int, actor: str) -> None:
        """A message that is delivered once more: what a worker that died before its acknowledgement leaves."""
        fields = {"v": "1", "dispatch_id": str(number), "source": self.source, "actor": actor, "headers": "{}"}
        self.healthy.client.xadd(HEALTHY, fields, id=f"{next(self.entries)}-1")
        until(self.healthy.is_empty)

    def killed_worker(self, nth: int) -> tuple[list[str], int]:
        """A worker that reads what was sent to the doomed and dies at its n-th point; its points, its signal."""
        return self.dies(lambda pipe: work(self.database, self.socket, stream=DOOMED, points=KilledAt(nth, pipe)))

    @contextmanager
    def held_worker(self, nth: int) -> Generator[Callable[[], None]]:
        """A worker that stands still at its n-th point; calling what this yields lets it go on to its message's end."""
        (heard, said), (waits, go) = os.pipe(), os.pipe()
        points = HeldAt(nth, said, waits)
        try:
            with forked(lambda: work(self.database, self.socket, stream=DOOMED, points=points)):
                ready, _, _ = select.select([heard], [], [], HANG_S)
                assert ready, f"the worker never came to its point {nth}"

                def go_on() -> None:
                    os.write(go, b"!")
                    until(self.doomed.is_empty)

                yield go_on
        finally:
            for end in (heard, said, waits, go):
                os.close(end)

    def dies(self, doing: Callable[[int], object]) -> tuple[list[str], int]:
        """Fork a child and wait for its end, and for the server to have noticed: its transaction is rolled back."""
        ended = run_to_its_end(doing)
        until(lambda: not self.watch.execute(IN_TRANSACTION).fetchall())
        return ended

    def is_connected(self, worker: int) -> bool:
        """Whether the server still serves a worker process: what it was asked before a kill it does after it."""
        name = f"pfsup:worker:c{worker}"
        found = self.watch.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [name])
        return bool(found.fetchall())

    def lose_everybody(self) -> None:
        """Every lease that is held has ended, every message lies with nobody who will ever take it up."""
        for statement in LOSSES:
            self.rows.all(statement)
        for stream in (self.doomed, self.healthy):
            for entry in stream.pending():
                stream.client.xclaim(stream.name, "pfsup", "nobody", 0, [entry], idle=7_200_000, justid=True)

    def converge(self, *kinds: str) -> int:
        """Cycles and healthy workers in turn until nothing is open; returns the rounds that it took."""
        for turn in range(1, ROUNDS + 1):
            for kind in (*kinds, *kinds):  # two looks
                self.lose_everybody()
                self.rows.awake()
                self.recovery.cycle(kind)
            if not self.send(self.healthy):
                assert not self.open_envelopes(), self.open_envelopes()
                return turn
            self.worked_off()
        raise AssertionError(f"still open after {ROUNDS} rounds: {self.open_envelopes()}")

    def open_envelopes(self) -> list[Any]:
        """Envelopes at work."""
        return self.rows.all(
            "SELECT id, actor, delivery_key, status, last_error FROM pfsup.async_dispatches"
            " WHERE status IN ('sent', 'running')"
        )

    def work_on(self) -> None:
        """Let the healthy worker do what is pending."""
        self.send(self.healthy)
        self.worked_off()

    def recover(self, kind: str, *, cycles: int) -> None:
        """As many cycles, with nothing asleep and time enough between two looks."""
        for _ in range(cycles):
            self.rows.awake()
            self.rows.all(LOOK_NOW)
            self.recovery.cycle(kind)

    def worked_off(self) -> None:
        """Wait until the healthy worker has ended every message."""
        until(lambda: not self.open_envelopes() and self.healthy.is_empty(), within_s=20, what=repr(self))

    def __repr__(self) -> str:
        entries = self.healthy.client.xrange(HEALTHY)
        return f"<Scene open={self.open_envelopes()} entries={entries} pending={self.healthy.pending()}>"

    def stage(self, actor: str) -> int:
        """An envelope that stands for no row of the product; its id."""
        return self.rows.one("SELECT id FROM pfsup.stage(%s, gen_random_uuid()::text)", actor).id

    def end_of(self, kind: str, number: str) -> str:
        """The status of a row of the product, or of an envelope."""
        if kind == "envelope":
            return str(self.rows.one("SELECT status FROM pfsup.async_dispatches WHERE id = %s", int(number)).status)
        return str(self.rows.row(TABLES[kind], number).status)

    def pending_envelopes(self) -> list[Any]:
        """Envelopes that nobody has sent."""
        return self.rows.all("SELECT id FROM pfsup.async_dispatches WHERE status = 'pending'")

    def open_rows(self) -> list[Any]:
        """Rows of the product that are queued or running."""
        query = " UNION ALL ".join(
            f"SELECT '{kind}' AS kind, id, status FROM productflow.{table} WHERE status IN ('queued', 'running')"
            for kind, table in TABLES.items()
        )
        return self.rows.all(query)

    def deadlocks(self) -> int:
        """How many the server has seen in this database."""
        query = b"SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        (found,) = self.watch.execute(query).fetchall()
        return int(found[0])

    def lives(self, pid: int) -> bool:
        """Whether a child has not ended."""
        return os.waitpid(pid, os.WNOHANG) == (0, 0)

    def calls(self) -> Counter[tuple[str, int]]:
        """How often the provider was asked for each (task, index), by its own log."""
        return received(self.log)

    def wipe(self) -> None:
        """Empty every table and stream, and the provider's log."""
        for table in (
            "pfsup.dispatch_effects", "pfsup.restaged", "pfsup.recovery_ledger", "pfsup.audit_log",
            "pfsup.async_dispatches", "productflow.delivery_jobs", "productflow.provider_effects",
            "productflow.local_edit_tasks", "productflow.image_tasks", "productflow.image_candidates",
            "productflow.workflow_runs", "productflow.workflow_node_runs", "productflow.agent_turns",
            "productflow.agent_turn_events", "productflow.agent_tasks", "productflow.agent_conversations",
        ):  # fmt: skip
            self.rows.all(f"DELETE FROM {table}")
        self.doomed.client.delete(DOOMED)
        os.truncate(self.log, 0)

    def live_envelopes(self) -> Counter[str]:
        """How many live envelopes each key has."""
        rows = self.rows.all(
            "SELECT delivery_key AS key FROM pfsup.async_dispatches"
            " WHERE status IN ('pending', 'held', 'sent', 'running', 'dead', 'unknown') AND delivery_key IS NOT NULL"
        )
        return Counter(row.key for row in rows)


@contextmanager
def scene_of(database: Database, directory: Path, *, workers: int = 1) -> Generator[Scene]:
    """The product with `workers` healthy workers; everything is ended at the end."""
    with ExitStack() as stack:
        socket, log = stack.enter_context(provider(directory))
        for _ in range(workers):
            stack.enter_context(forked(lambda: work(database, socket, stream=HEALTHY)))
        rows = stack.enter_context(rows_of(database))
        owner = stack.enter_context(owner_of(database))
        client = stack.enter_context(redis_client(database.redis_url))
        conn = stack.enter_context(psycopg.connect(database.app_url, autocommit=True))
        yield Scene(
            database=database,
            rows=rows,
            app=App(conn, product_queries()),
            doomed=Stream(client, owner, DOOMED),
            healthy=Stream(client, owner, HEALTHY),
            socket=socket,
            log=log,
            recovery=stack.enter_context(recovery_of(database)),
            source=owner.source(),
            entries=count(1),
            watch=stack.enter_context(database.superuser()),
        )


@contextmanager
def crash_scene(server: PgServer, redis_server: RedisServer, *, workers: int = 1) -> Generator[Scene]:
    """A scene in a database of its own, for the tests of one file."""
    redis_server.flush()
    directory = Path(tempfile.mkdtemp(prefix="pft-", dir="/tmp"))
    try:
        with (
            productflow_database(server, redis_url=redis_server.url, directory=directory) as database,
            scene_of(database, directory, workers=workers) as scene,
        ):
            yield scene
    finally:
        shutil.rmtree(directory, ignore_errors=True)
