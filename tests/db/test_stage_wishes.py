"""The promise of stage(): a run begins after the caller's commit, whatever the envelope of the key is doing."""

from __future__ import annotations

import random
import threading

import pytest
from support.database import Database
from support.runs import Owner, Worker, owner_of, worker_of
from support.staging import App, app_of, in_threads, meanwhile, until_blocked

STAGE = "SELECT pfsup.stage_wishes('k')"


def live(owner: Owner, key: str = "k") -> list[int]:
    found = owner.rows("SELECT id FROM pfsup.async_dispatches WHERE delivery_key = %s AND finished_at IS NULL", key)
    return [row.id for row in found]


def wishes(owner: Owner) -> int:
    return int(owner.value("SELECT count(*) FROM pfsup.restaged"))


def test_wish_before_the_run_begins_is_fulfilled_by_that_run(owner: Owner, app: App, worker: Worker) -> None:
    number = owner.sent(key="k", payload={"v": 1})
    app.stage(key="k", payload={"v": 2})
    app.stage(key="k", payload={"v": 3}, headers={"h": 1})
    answer = worker.begin(number)
    assert (answer.payload, answer.headers, wishes(owner)) == ({"v": 3}, {"h": 1}, 0)


@pytest.mark.parametrize("outcome", ["consumed", "rejected"])
def test_wish_while_the_run_works_becomes_one_new_envelope(
    owner: Owner, app: App, worker: Worker, outcome: str
) -> None:
    run = worker.begun(owner.sent(key="k"))
    app.stage(key="k", payload={"v": 2}, tenant="a")
    app.stage(key="k", payload={"v": 3}, tenant="b", queue="q", max_attempts=4, headers={"h": 1})
    worker.settle(run, outcome)
    (number,) = live(owner)
    row = owner.row(number)
    assert (row.status, row.payload, row.tenant, row.queue) == ("pending", {"v": 3}, "b", "q")
    assert (row.max_attempts, row.headers, row.actor, wishes(owner)) == (4, {"h": 1}, "paint", 0)


def test_wish_in_a_transaction_that_is_open_while_the_run_begins_gets_a_later_run(
    owner: Owner, app: App, worker: Worker
) -> None:
    number = owner.sent(key="k")
    with app.conn.transaction():
        assert app.stage(key="k").outcome == "rerun"
        run = worker.begun(number)
    worker.settle(run, "consumed")
    assert len(live(owner)) == 1
    assert live(owner) != [number]


def test_wish_that_commits_after_the_end_is_staged_by_dispatch(
    database: Database, owner: Owner, app: App, worker: Worker
) -> None:
    run = worker.begun(owner.sent(key="k"))
    with app.conn.transaction():
        app.stage(key="k")
        worker.settle(run, "consumed")
    assert (live(owner), wishes(owner)) == ([], 1)
    assert owner.value("SELECT pfsup.stage_wishes('k')") == live(owner)[0]
    assert wishes(owner) == 0


def test_wishes_of_a_live_key_stay_where_they_are(owner: Owner, app: App) -> None:
    app.stage(key="k")
    app.stage(key="k")
    assert owner.value("SELECT pfsup.stage_wishes('k')") is None
    assert wishes(owner) == 1


def test_key_without_wishes_stages_nothing(owner: Owner) -> None:
    assert owner.value("SELECT pfsup.stage_wishes('k')") is None


def test_rolled_back_settle_leaves_the_wish(owner: Owner, app: App, worker: Worker) -> None:
    run = worker.begun(owner.sent(key="k"))
    app.stage(key="k")
    with worker.conn.transaction(force_rollback=True):
        worker.settle(run, "consumed")
    assert (live(owner), wishes(owner)) == ([run.id], 1)


def test_wish_fulfilled_while_its_staging_waited_is_not_run_twice(
    database: Database, owner: Owner, app: App, worker: Worker
) -> None:
    run = worker.begun(owner.sent(key="k"))
    with app.conn.transaction():
        app.stage(key="k")
        worker.settle(run, "consumed")
    started = threading.Event()
    with owner_of(database) as second, meanwhile(lambda: (started.wait(30), second.value(STAGE))[1]) as answer:
        with owner.conn.transaction():
            number = owner.value(STAGE)
            started.set()
            until_blocked(database, second.conn.info.backend_pid)
            app_cancelled = owner.value("SELECT outcome FROM pfsup.cancel(%s::bigint)", number)
        assert (app_cancelled, answer()) == ("cancelled", None)
    assert live(owner) == []


def test_of_many_stagers_of_one_keys_wishes_one_stages(database: Database, owner: Owner, app: App) -> None:
    number = app.stage(key="k").id
    for _ in range(5):
        app.stage(key="k")
    owner.rows("UPDATE pfsup.async_dispatches SET status = 'consumed', sent_at = now(), finished_at = now()")

    def call() -> int | None:
        with owner_of(database) as session:
            return session.value(STAGE)

    assert sorted(in_threads([call] * 8), key=str) == [*live(owner), *[None] * 7]
    assert number not in live(owner)
    assert wishes(owner) == 0


def test_fuzz_of_producers_and_workers_loses_no_last_change(database: Database, owner: Owner) -> None:
    """Producers change a row and stage its key together; a run copies what it sees. In the end all is seen."""
    keys = [f"k{n}" for n in range(8)]
    owner.rows("CREATE TABLE public.work (key text PRIMARY KEY, wanted int DEFAULT 0, seen int DEFAULT 0)")
    owner.rows("GRANT ALL ON public.work TO pfsup_stage, pfsup_work")
    owner.rows("INSERT INTO public.work (key) SELECT unnest(%s::text[])", keys)
    finished = threading.Event()

    def produce(seed: int) -> None:
        rng = random.Random(seed)
        with app_of(database) as session:
            for _ in range(60):
                key = rng.choice(keys)
                with session.conn.transaction():
                    session.rows("UPDATE public.work SET wanted = wanted + 1 WHERE key = %s", key)
                    session.stage(key=key)

    def work() -> None:
        with owner_of(database) as mine, worker_of(database) as session:
            while True:
                last_look = finished.is_set()
                mine.rows("SELECT pfsup.stage_wishes(delivery_key) FROM pfsup.restaged GROUP BY delivery_key")
                found = mine.rows("SELECT id, delivery_key FROM pfsup.async_dispatches WHERE status = 'pending'")
                for row in found:
                    run_one(mine, session, row.id, row.delivery_key)
                if last_look and not found:
                    return

    def run_one(mine: Owner, session: Worker, number: int, key: str) -> None:
        mine.rows(
            "UPDATE pfsup.async_dispatches SET status = 'sent', sent_at = now(), check_at = now()"
            " WHERE id = %s AND status = 'pending'",
            number,
        )
        answer = session.begin(number)
        if answer.verdict != "go":
            return
        with session.conn.transaction():
            session.rows("UPDATE public.work SET seen = wanted WHERE key = %s", key)
            session.rows("SELECT * FROM pfsup.settle(%s, %s, 'consumed')", number, answer.token)

    def produce_all() -> None:
        in_threads([lambda seed=seed: produce(seed) for seed in range(4)])
        finished.set()

    in_threads([produce_all, work, work])
    work()
    assert owner.rows("SELECT key, wanted, seen FROM public.work WHERE seen <> wanted") == []
    assert owner.value("SELECT sum(wanted) FROM public.work") == 240
    assert wishes(owner) == 0
