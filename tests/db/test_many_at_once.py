"""Everything at once on a few keys: whatever happens, a committed stage() is followed by a run with its change.

Threads of each role act at random, seeded, a bounded number of times: producers with open transactions and rollbacks,
dispatchers that freeze, workers that get duplicates, settle in every way, and lose their rows. Afterwards a calm loop
drains what is left, and the promises are checked against what each thread wrote down.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb
from support.database import Database
from support.waiting import HANG_S

KEYS = [f"key:{n}" for n in range(12)]
CANCELLED_KEYS = [f"cancelled:{n}" for n in range(3)]
STEPS = 150
OUTCOMES = ["consumed"] * 6 + ["retry", "retry", "snooze", "rejected", "dead", "unknown"]


Sides = tuple[psycopg.Connection[Any], psycopg.Connection[Any]]  # the worker's connection, the owner's


@dataclass(frozen=True, slots=True)
class Wish:
    """A committed stage(): `at` was taken just before its COMMIT was sent."""

    key: str
    version: int
    at: int
    outcome: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run that begin_work() let in: `at` was taken just after its answer."""

    key: str
    version: int
    at: int


@dataclass(slots=True)
class World:
    """What the threads share and what they wrote down."""

    database: Database
    messages: Queue[tuple[int, str]] = field(default_factory=Queue[tuple[int, str]])
    wishes: list[Wish] = field(default_factory=list[Wish])
    runs: list[Run] = field(default_factory=list[Run])
    errors: list[str] = field(default_factory=list[str])
    busy: threading.Event = field(default_factory=threading.Event)  # set while producers are at work
    order: Any = field(default_factory=itertools.count)
    versions: Any = field(default_factory=lambda: itertools.count(1))
    keys: dict[str, threading.Lock] = field(
        default_factory=lambda: {key: threading.Lock() for key in KEYS + CANCELLED_KEYS}
    )

    def connect(self, url: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        # A wait that lasts is a failure that names itself, not a hang.
        limits = "-c statement_timeout=20s -c idle_in_transaction_session_timeout=20s"
        return psycopg.connect(url, autocommit=autocommit, row_factory=namedtuple_row, options=limits)


def produce(world: World, rng: random.Random) -> None:
    """Stage in transactions that stay open for other steps, commit or roll back; now and then cancel."""
    with world.connect(world.database.app_url, autocommit=False) as conn:
        for _ in range(STEPS):
            key = rng.choice(KEYS if rng.random() < 0.9 else CANCELLED_KEYS)
            # Versions of a key are staged in their order; commits may overtake each other. One stage() a transaction:
            # a second would want this lock while its holder waits for our commit.
            with world.keys[key]:
                version = next(world.versions)
                query = "SELECT outcome FROM pfsup.stage('paint', %s, %s, NULL, %s)"
                row: Any = conn.execute(query, [key, Jsonb(version), key]).fetchone()
            if key in CANCELLED_KEYS and rng.random() < 0.5:
                conn.execute("SELECT pfsup.cancel(%s::text)", [key])
            if rng.random() < 0.15:
                conn.rollback()
                continue
            at = next(world.order)
            conn.commit()
            world.wishes.append(Wish(key, version, at, row.outcome))


def dispatch(world: World, rng: random.Random, *, calm: bool = False) -> None:
    """Claim, send, mark. Not calm: with leases that end at once, marks that come late, claims given back."""
    owed: list[tuple[UUID, list[int], list[str]]] = []
    with world.connect(world.database.run_url) as conn:
        while calm or world.busy.is_set():
            token, lease = uuid4(), "30 s" if calm or rng.random() < 0.7 else "0.1 s"
            claimed = conn.execute(
                "SELECT id FROM pfsup.claim_due(%s, 'boot/1', %s::interval, %s)", [token, lease, rng.randint(1, 8)]
            ).fetchall()
            ids = [row.id for row in claimed if row.id is not None]
            entries = [f"s {next(world.order)}-1" for _ in ids]
            if calm or rng.random() < 0.9:
                for message in zip(ids, entries, strict=True):
                    world.messages.put(message)
                owed.append((token, ids, entries))
            else:
                conn.execute("SELECT pfsup.release_claims(%s, %s::bigint[])", [token, ids])
            if owed and (calm or rng.random() < 0.7):
                late = owed.pop(rng.randrange(len(owed)))
                marks = [[late[0]] * len(late[1]), late[1], late[2]]
                conn.execute("SELECT * FROM pfsup.mark_sent(%s::uuid[], %s::bigint[], %s::text[])", marks)
            if rng.random() < 0.1:
                conn.execute("SELECT * FROM pfsup.stage_restaged()")
            if calm and not ids:
                return


def work(world: World, rng: random.Random, *, calm: bool = False) -> None:
    """Take messages, some of them twice; begin, beat, mark effects, settle in some way, or lose the row first."""
    with world.connect(world.database.worker_url) as conn, world.connect(world.database.url) as owner:
        while calm or world.busy.is_set():
            try:
                number, entry = world.messages.get(timeout=0.02)
            except Empty:
                if calm:
                    return
                continue
            if rng.random() < 0.2 and not calm:
                world.messages.put((number, entry))
            options = Jsonb({"sink_ref": entry})
            begun: Any = conn.execute(
                "SELECT * FROM pfsup.begin_work(%s, 'paint', 'w', '30 s', %s)", [number, options]
            ).fetchone()
            if begun.verdict == "busy":
                world.messages.put((number, entry))
            if begun.verdict == "go":
                world.runs.append(Run(begun.aggregate_id, begun.payload, next(world.order)))
                end(world, rng, (conn, owner), (number, begun.token), calm=calm)


def end(world: World, rng: random.Random, sides: Sides, run: tuple[int, UUID], *, calm: bool) -> None:
    """End a run that was let in."""
    (conn, owner), (number, token) = sides, run
    outcome = "consumed" if calm else rng.choice(OUTCOMES)
    if not calm and rng.random() < 0.2:
        conn.execute("SELECT * FROM pfsup.beat(%s, %s)", [number, token])
    if not calm and rng.random() < 0.1:
        begun: Any = conn.execute("SELECT verdict FROM pfsup.effect(%s, %s, 'begun')", [number, token]).fetchone()
        if begun.verdict == "ok":  # else an earlier run has done it
            conn.execute("SELECT pfsup.effect(%s, %s, %s)", [number, token, rng.choice(["done", "void"])])
    if not calm and rng.random() < 0.15:
        lose(world, conn, owner, number, token)
        return
    options = Jsonb({"retry_in": 0} if outcome in ("retry", "snooze") else {})
    first = settle(conn, run, outcome, options)
    again = settle(conn, run, outcome, options)
    # A row that is in line again may have been run and ended by another worker before we repeat ourselves.
    expected = {"already", "PF412"} if outcome in ("retry", "snooze") else {"already"}
    if first != "ok" or again not in expected:
        world.errors.append(f"settle {outcome} of {number}: {first}, then {again}")


def settle(conn: psycopg.Connection[Any], run: tuple[int, UUID], outcome: str, options: Jsonb) -> str:
    """The verdict, or PF412."""
    try:
        query = "SELECT verdict FROM pfsup.settle(%s, %s, %s, NULL, %s)"
        answer: Any = conn.execute(query, [*run, outcome, options]).fetchone()
    except psycopg.Error as error:
        if error.sqlstate != "PF412":
            raise
        return "PF412"
    return str(answer.verdict)


def lose(world: World, conn: psycopg.Connection[Any], owner: psycopg.Connection[Any], number: int, token: UUID) -> None:
    """The lease ends, recovery takes the row, and the worker comes back too late."""
    owner.execute(
        "UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 s'"
        " WHERE id = %s AND lease_token = %s",
        [number, token],
    )
    taken: Any = owner.execute("SELECT outcome FROM pfsup.redispatch(%s)", [number]).fetchone()
    late = settle(conn, (number, token), "consumed", Jsonb({}))
    if taken.outcome == "staged" and late != "PF412":
        world.errors.append(f"a late settle of {number} was answered {late}")


def calm_down(world: World, rng: random.Random) -> None:
    """A person decides what is blocked, lost runs are taken back, and the rest is done in peace."""
    left: Any = None
    with world.connect(world.database.url) as owner:
        for _ in range(200):
            for row in owner.execute(
                "SELECT id, status FROM pfsup.async_dispatches WHERE status IN ('dead', 'unknown')"
            ):
                name = "retry(%s" if row.status == "dead" else "settle_unknown(%s, 'retry'"
                owner.execute(f"SELECT pfsup.{name}, 'a person', 'looked into it')".encode(), [row.id])
            owner.execute(
                "UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 s'"
                " WHERE status IN ('running', 'pending') AND lease_token IS NOT NULL"
            )
            owner.execute("SELECT pfsup.redispatch(id) FROM pfsup.async_dispatches WHERE status = 'running'")
            owner.execute("SELECT * FROM pfsup.stage_restaged()")
            dispatch(world, rng, calm=True)
            work(world, rng, calm=True)
            left = owner.execute(
                "SELECT (SELECT count(*) FROM pfsup.async_dispatches WHERE finished_at IS NULL)"
                " + (SELECT count(*) FROM pfsup.restaged) AS rows"
            ).fetchone()
            if left.rows == 0:
                return
    raise AssertionError(f"stuck after the calm: {left}")


def unfulfilled(world: World) -> list[Wish]:
    """Wishes that no later run with their change, or a newer one, followed. Cancelled keys promise nothing."""
    newest: dict[str, list[Run]] = {}
    for run in world.runs:
        newest.setdefault(run.key, []).append(run)
    return [
        wish
        for wish in world.wishes
        if wish.key in KEYS
        and wish.outcome in ("created", "rerun")
        and not any(run.version >= wish.version and run.at > wish.at for run in newest.get(wish.key, []))
    ]


def all_at_once(database: Database, seed: int) -> World:
    """Every thread at once, then the calm."""
    world = World(database)
    world.busy.set()
    others: Sequence[Callable[[World, random.Random], None]] = [dispatch, dispatch, work, work, work, work]
    with ThreadPoolExecutor(10) as pool:
        beside = [pool.submit(act, world, random.Random(f"{seed}/{n}")) for n, act in enumerate(others)]
        try:
            for one in [pool.submit(produce, world, random.Random(f"{seed}/p{n}")) for n in range(4)]:
                one.result(HANG_S * 4)
        finally:
            world.busy.clear()
        for one in beside:
            one.result(HANG_S)
    calm_down(world, random.Random(seed))
    return world


def check(database: Database, seed: int) -> None:
    world = all_at_once(database, seed)
    assert world.errors == []
    assert unfulfilled(world) == []
    assert any(wish.outcome == "rerun" for wish in world.wishes)
    assert world.runs


def test_committed_stage_is_followed_by_a_run_whatever_happens(database: Database) -> None:
    """One seed in the suite; also: no deadlock, no error but a late worker's, nothing stuck."""
    check(database, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 14))
def test_committed_stage_is_followed_by_a_run_with_any_seed(database: Database, seed: int) -> None:
    """The same with other orders of events."""
    check(database, seed)
