"""Wishes whose staging meets open transactions, other actors, and payloads that look small."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import psycopg
import pytest
from support.database import Database
from support.outbox import Claimer
from support.runs import Owner, Worker
from support.staging import App, app_of, meanwhile, until_blocked


def ended_with_wish(owner: Owner, app: App, worker: Worker, key: str) -> None:
    """A wish whose transaction was open while its envelope ended: only dispatch can find it."""
    run = worker.begun(owner.sent(key=key))
    with app.conn.transaction():
        app.stage(key=key)
        worker.settle(run, "consumed")


def live(owner: Owner, key: str) -> list[tuple[str, str]]:
    query = "SELECT actor, status FROM pfsup.async_dispatches WHERE delivery_key = %s AND finished_at IS NULL"
    return [tuple(row) for row in owner.rows(query, key)]


def test_wish_for_another_actor_under_the_same_key_gets_its_own_run(owner: Owner, app: App, worker: Worker) -> None:
    run = worker.begun(owner.sent(key="k"))
    for actor in ("mail", "print", "mail"):
        app.stage(actor=actor, key="k")
    ran: list[str] = []
    worker.settle(run, "consumed")
    while found := owner.rows("SELECT id, actor FROM pfsup.async_dispatches WHERE finished_at IS NULL"):
        (row,) = found
        owner.mark(row.id)
        worker.settle(worker.begun(row.id, actor=row.actor), "consumed")
        ran.append(row.actor)
    assert ran == ["mail", "print"]


def test_cancel_finds_the_envelope_that_a_wish_becomes_meanwhile(
    database: Database, owner: Owner, app: App, worker: Worker
) -> None:
    """Dispatch has turned the wish into an envelope and not committed yet: neither may cancel() miss it."""
    ended_with_wish(owner, app, worker, "k")
    with ExitStack() as stack:
        with owner.conn.transaction():
            assert owner.one("SELECT * FROM pfsup.stage_restaged()").staged == 1
            answer = stack.enter_context(meanwhile(lambda: app.cancel("k").outcome))
            until_blocked(database, app.pid)
        assert answer() == "cancelled"
    assert live(owner, "k") == []


def test_cancel_of_wishes_alone_leaves_none(owner: Owner, app: App, worker: Worker) -> None:
    ended_with_wish(owner, app, worker, "k")
    assert app.cancel("k").outcome == "cancelled"
    assert (live(owner, "k"), owner.value("SELECT count(*) FROM pfsup.restaged")) == ([], 0)
    assert app.cancel("k").outcome == "not_found"


def test_key_in_an_open_transaction_does_not_hold_up_the_wishes_of_others(
    database: Database, owner: Owner, app: App, worker: Worker
) -> None:
    for key in ("a", "b", "c"):
        ended_with_wish(owner, app, worker, key)
    with app.conn.transaction(), Claimer(database) as dispatch:
        app.stage(key="b")
        assert dispatch.one("stage_restaged()") == 2
        assert [live(owner, key) != [] for key in "abc"] == [True, False, True]
    assert live(owner, "b") == [("paint", "pending")]


def test_stage_restaged_makes_no_deadlock_with_a_producer_of_another_order(
    database: Database, owner: Owner, app: App, worker: Worker
) -> None:
    for key in ("a", "b"):
        ended_with_wish(owner, app, worker, key)
    with psycopg.connect(database.run_url) as dispatch, app_of(database) as other, other.conn.transaction():
        other.stage(key="b")
        found: Any = dispatch.execute("SELECT staged FROM pfsup.stage_restaged()").fetchone()
        with meanwhile(lambda: other.stage(key="a").outcome) as answer:
            until_blocked(database, other.pid)
            dispatch.commit()
            assert (found[0], answer()) == (1, "rerun")


@pytest.fixture
def document(owner: Owner) -> str:
    """A payload of 1 MB that a table keeps compressed: its stored size is far below the limit."""
    owner.rows("CREATE TABLE public.documents (body jsonb)")
    owner.rows("GRANT SELECT ON public.documents TO PUBLIC")
    owner.rows("INSERT INTO public.documents SELECT to_jsonb(repeat('x', 1000000))")
    return "SELECT pfsup.stage('paint', '7', body, NULL, 'k') FROM public.documents"


@pytest.mark.parametrize("taken", [False, True], ids=["new key", "live key"])
def test_payload_that_a_table_keeps_compressed_is_measured_whole(
    owner: Owner, app: App, document: str, taken: bool
) -> None:
    """As a wish it would have refused every begin_work() and settle() of its key, and stopped dispatch."""
    if taken:
        app.stage(key="k")
    with pytest.raises(psycopg.Error) as caught:
        app.rows(document)
    assert caught.value.sqlstate == "PF413"
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


@pytest.mark.parametrize(
    "time", ["2030-01-01 00:00 foo/bar", "2030-01-01 00:00+99", "2030-02-31", "soon", "99999999-1-1"]
)
def test_stage_many_names_the_item_whose_time_is_none(app: App, time: str) -> None:
    with pytest.raises(psycopg.Error, match="item 2") as caught:
        app.stage_many([{"actor": "a", "aggregate_id": "1"}, {"actor": "a", "aggregate_id": "2", "available_at": time}])
    assert caught.value.sqlstate == "PF400"


@pytest.fixture
def foreign_key_column(database: Database) -> str:
    """A table whose texts have another collation: where there is one, letters of both cases are equal."""
    with database.superuser() as conn:
        conn.execute('CREATE COLLATION public.other FROM "POSIX"')
        # The wheel's PostgreSQL is built without ICU.
        with suppress(psycopg.errors.FeatureNotSupported), conn.transaction():
            conn.execute("DROP COLLATION public.other")
            conn.execute(
                "CREATE COLLATION public.other (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        conn.execute("CREATE TABLE public.other (name text COLLATE public.other)")
        conn.execute("INSERT INTO public.other VALUES ('K1')")
        conn.execute("GRANT SELECT ON public.other TO PUBLIC")
        conn.execute(
            "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
            " SELECT 'paint', 'paint', n::text, 'k' || n FROM generate_series(1, 3000) AS n"
        )
        conn.execute("ANALYZE pfsup.async_dispatches")
    return "FROM public.other"


def test_arguments_of_another_collation_find_their_key_along_the_index(
    owner: Owner, app: App, foreign_key_column: str
) -> None:
    stage = f"SELECT s.* {foreign_key_column} AS o, pfsup.stage(o.name, o.name, NULL, NULL, o.name) AS s"
    scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'async_dispatches'"
    assert app.one(stage).outcome == "created"
    with owner.conn.transaction():
        assert [owner.one(stage).outcome, owner.one(stage).outcome] == ["rerun", "rerun"]
        assert owner.value(f"SELECT c.outcome {foreign_key_column} AS o, pfsup.cancel(o.name) AS c") == "cancelled"
        assert owner.value(scans) == 0
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches WHERE status = 'pending'") == 3000
