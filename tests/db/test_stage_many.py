"""stage_many and cancel: the bulk form, and taking back what no worker has begun."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.database import Database
from support.runs import Owner, Worker
from support.staging import App, app_of, in_threads


def item(key: str | None = None, **more: Any) -> dict[str, Any]:
    return {"actor": "paint", "aggregate_id": "7", "delivery_key": key, **more}


def test_stage_many_answers_one_row_an_item_in_the_order_given(owner: Owner, app: App) -> None:
    answers = app.stage_many([item("z"), item(payload={"n": 1}, options={"tenant": "acme"}), item("a"), item("z")])
    assert [(a.position, a.outcome, a.status) for a in answers] == [
        (1, "created", "pending"),
        (2, "created", "pending"),
        (3, "created", "pending"),
        (4, "rerun", "pending"),
    ]
    assert answers[3].id == answers[0].id
    row = owner.row(answers[1].id)
    assert (row.payload, row.tenant) == ({"n": 1}, "acme")


def test_stage_many_of_nothing_answers_nothing(app: App) -> None:
    assert app.stage_many([]) == []


@pytest.mark.parametrize(
    ("items", "sqlstate", "text"),
    [
        ({}, "PF400", "cannot stage many: items must be a JSON array, got object"),
        (None, "PF400", "cannot stage many: items must be a JSON array, got null"),
        ([3], "PF400", "cannot stage many: item 1: wanted a JSON object, got number"),
        ([item(), item(actor="a b")], "PF400", 'item 2: cannot stage: actor "a b" is not allowed'),
        ([item(), item(acter="x")], "PF400", 'item 2: cannot stage: unknown option "acter"'),
        ([item(available_at="soon")], "PF400", "item 1: invalid input syntax for type timestamp"),
        ([item(), item(payload="x" * 262144)], "PF413", "item 2: cannot stage: the payload has"),
        ([item("k"), item("k", options={"on_conflict": "error"})], "PF409", "item 2: cannot stage: the delivery key"),
    ],
)
def test_first_refused_item_is_named_and_refuses_all(
    owner: Owner, app: App, items: Any, sqlstate: str, text: str
) -> None:
    with pytest.raises(psycopg.Error) as e:
        app.stage_many(items)
    assert e.value.sqlstate == sqlstate
    assert text in (e.value.diag.message_primary or "")
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches") == 0


def test_stage_many_in_opposite_orders_never_deadlocks(database: Database) -> None:
    keys = [f"k{n}" for n in range(40)]

    def calls(order: list[str]) -> int:
        with app_of(database) as session:
            return sum(len(session.stage_many([item(key) for key in order])) for _ in range(10))

    assert in_threads([lambda: calls(keys), lambda: calls(keys[::-1])] * 3) == [400] * 6


@pytest.mark.parametrize("claimed", [False, True])
def test_cancel_ends_a_pending_row_also_under_a_claim(owner: Owner, app: App, claimed: bool) -> None:
    number = app.stage(key="k").id
    if claimed:
        owner.claim(number)
    assert app.cancel(number)[:] == (number, "cancelled")
    row = owner.row(number)
    assert (row.status, row.lease_token, row.claimed_by) == ("cancelled", None, None)
    assert row.finished_at is not None


def test_cancelled_sent_row_gets_no_go(owner: Owner, app: App, worker: Worker) -> None:
    number = owner.sent(key="k")
    assert app.cancel("k")[:] == (number, "cancelled")
    assert worker.begin(number).verdict == "ended"


def test_cancel_of_a_running_row_is_too_late_and_changes_nothing(owner: Owner, app: App, worker: Worker) -> None:
    run = worker.begun(owner.sent(key="k"))
    before = owner.row(run.id)
    assert app.cancel(run.id)[:] == (run.id, "running")
    assert app.cancel("k")[:] == (run.id, "running")
    assert owner.row(run.id) == before


@pytest.mark.parametrize(("ended_as", "outcome"), [("consumed", "ended"), ("rejected", "ended"), ("dead", "blocked")])
def test_cancel_of_an_ended_row_says_how_it_stands(
    owner: Owner, app: App, worker: Worker, ended_as: str, outcome: str
) -> None:
    run = worker.begun(owner.sent())
    worker.settle(run, ended_as)
    assert app.cancel(run.id).outcome == outcome


def test_cancel_twice_answers_already(app: App) -> None:
    number = app.stage(key="k").id
    app.cancel(number)
    assert app.cancel(number)[:] == (number, "already")


def test_cancel_of_an_unknown_id_or_key_answers_not_found(app: App) -> None:
    assert app.cancel(4711)[:] == (4711, "not_found")
    assert app.cancel("none")[:] == (None, "not_found")


def test_cancel_takes_the_wishes_behind_the_envelope_too(owner: Owner, app: App) -> None:
    app.stage(key="k")
    app.stage(key="k")
    app.stage(key="other")
    app.stage(key="other")
    app.cancel("k")
    assert [w.delivery_key for w in owner.rows("SELECT delivery_key FROM pfsup.restaged")] == ["other"]
    assert app.stage(key="k").outcome == "created"


def test_cancel_is_rolled_back_with_its_caller(owner: Owner, app: App) -> None:
    number = app.stage(key="k").id
    with app.conn.transaction(force_rollback=True):
        app.cancel("k")
    assert owner.status(number) == "pending"
