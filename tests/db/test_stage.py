"""stage: what it writes, what it answers for a live key, and what becomes of it with the caller's transaction."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.database import Database
from support.runs import Owner
from support.staging import App, app_of, in_threads, meanwhile, until_blocked

LIVE = ("pending", "held", "sent", "running", "dead", "unknown")


@pytest.fixture
def other(database: Database) -> Generator[App]:
    with app_of(database) as session:
        yield session


def test_new_envelope_is_pending_in_its_actors_queue_and_due_now(owner: Owner, app: App) -> None:
    answer = app.stage(payload={"n": 1})
    row = owner.row(answer.id)
    assert answer[1:] == ("created", "pending")
    assert (row.actor, row.queue, row.aggregate_id, row.payload, row.headers) == ("paint", "paint", "7", {"n": 1}, {})
    assert (row.status, row.completion, row.max_attempts, row.tenant) == ("pending", "worker", 20, None)
    assert row.available_at <= owner.value("SELECT clock_timestamp()")


def test_policy_of_the_actor_fills_what_the_caller_left_open(owner: Owner, app: App) -> None:
    owner.policy("paint", queue="slow", completion="handover", max_attempts=3)
    row = owner.row(app.stage().id)
    assert (row.queue, row.completion, row.max_attempts) == ("slow", "handover", 3)


def test_options_of_the_caller_win_over_the_policy(owner: Owner, app: App) -> None:
    owner.policy("paint", queue="slow", max_attempts=3)
    row = owner.row(app.stage(queue="q.1", tenant="acme", headers={"trace": "00-1"}, max_attempts=9).id)
    assert (row.queue, row.tenant, row.headers, row.max_attempts) == ("q.1", "acme", {"trace": "00-1"}, 9)


def test_option_that_is_json_null_counts_as_not_given(owner: Owner, app: App) -> None:
    row = owner.row(app.stage(queue=None, tenant=None, headers=None, max_attempts=None, on_conflict=None).id)
    assert (row.queue, row.tenant, row.headers, row.max_attempts) == ("paint", None, {}, 20)


def test_delayed_envelope_is_due_when_told(owner: Owner, app: App) -> None:
    due_at = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
    assert owner.row(app.stage(available_at=due_at).id).available_at == due_at


def test_without_a_key_every_stage_is_a_run_of_its_own(app: App) -> None:
    first, second = app.stage(), app.stage()
    assert (first.outcome, second.outcome) == ("created", "created")
    assert first.id != second.id


def test_live_key_answers_rerun_and_keeps_the_wish(owner: Owner, app: App) -> None:
    first = app.stage(key="k")
    again = app.stage(key="k", payload={"v": 2}, tenant="acme")
    assert again[:] == (first.id, "rerun", "pending")
    wish = owner.one("SELECT actor, aggregate_id, payload, options ->> 'tenant' AS tenant FROM pfsup.restaged")
    assert wish[:] == ("paint", "7", {"v": 2}, "acme")


@pytest.mark.parametrize(("status", "outcome"), [("dead", "blocked"), ("unknown", "blocked"), ("held", "rerun")])
@pytest.mark.parametrize("on_conflict", ["rerun", "keep"])
def test_dead_and_unknown_block_their_key_and_held_does_not(
    owner: Owner, app: App, status: str, outcome: str, on_conflict: str
) -> None:
    number = app.stage(key="k").id
    owner.rows(
        "UPDATE pfsup.async_dispatches SET status = %s, finished_at = CASE WHEN %s = 'held' THEN NULL ELSE now() END",
        status,
        status,
    )
    expected = "existing" if (status, on_conflict) == ("held", "keep") else outcome
    assert app.stage(key="k", on_conflict=on_conflict)[:] == (number, expected, status)
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == (expected == "rerun")


def test_on_conflict_keep_answers_existing_and_writes_nothing(owner: Owner, app: App) -> None:
    first = app.stage(key="k")
    assert app.stage(key="k", on_conflict="keep")[:] == (first.id, "existing", "pending")
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


def test_on_conflict_error_raises_pf409_with_the_envelope(app: App) -> None:
    first = app.stage(key="k")
    with pytest.raises(
        psycopg.Error, match=rf'cannot stage: the delivery key "k" has a live envelope, {first.id}'
    ) as e:
        app.stage(key="k", on_conflict="error")
    assert e.value.sqlstate == "PF409"


@pytest.mark.parametrize("status", ["consumed", "rejected", "cancelled"])
def test_ended_envelope_frees_its_key(owner: Owner, app: App, status: str) -> None:
    first = app.stage(key="k")
    owner.rows("UPDATE pfsup.async_dispatches SET status = %s, finished_at = now(), sent_at = now()", status)
    second = app.stage(key="k")
    assert second.outcome == "created"
    assert second.id != first.id


def test_live_key_is_answered_while_somebody_holds_the_envelopes_lock(owner: Owner, app: App) -> None:
    first = app.stage(key="k")
    with owner.conn.transaction():
        owner.rows("SELECT FROM pfsup.async_dispatches FOR UPDATE")
        app.rows("SET lock_timeout = '1ms'")
        assert app.stage(key="k")[:] == (first.id, "rerun", "pending")


@pytest.mark.parametrize(("commits", "outcome"), [(True, "created"), (False, "rerun")])
def test_stage_behind_an_uncommitted_end_of_the_key_learns_how_it_ended(
    database: Database, app: App, other: App, commits: bool, outcome: str
) -> None:
    started = threading.Event()
    app.stage(key="k")
    with meanwhile(lambda: (started.wait(30), other.stage(key="k"))[1]) as answer:
        with app.conn.transaction(force_rollback=not commits):
            app.cancel("k")
            started.set()
            until_blocked(database, other.pid)
        assert answer().outcome == outcome


def test_rolled_back_with_its_caller(owner: Owner, app: App) -> None:
    with app.conn.transaction(force_rollback=True):
        app.stage(key="k")
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches") == 0
    assert app.stage(key="k").outcome == "created"


def test_rolled_back_to_a_savepoint_leaves_what_stood_before(owner: Owner, app: App) -> None:
    with app.conn.transaction():
        kept = app.stage(key="a")
        with app.conn.transaction(force_rollback=True):
            app.stage(key="b")
            app.stage(key="a")
    assert [row.id for row in owner.rows("SELECT id FROM pfsup.async_dispatches")] == [kept.id]
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


def test_fifty_callers_of_one_key_make_one_live_envelope_and_each_is_told(database: Database, owner: Owner) -> None:
    def call() -> Any:
        with app_of(database) as session:
            return session.stage(key="k")

    answers = in_threads([call] * 50)
    assert Counter(answer.outcome for answer in answers) == {"created": 1, "rerun": 49}
    assert len({answer.id for answer in answers}) == 1
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches WHERE status = ANY(%s)", list(LIVE)) == 1
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 49


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_above_read_committed_one_row_is_live_and_the_rest_raise_40001(
    database: Database, owner: Owner, level: str
) -> None:
    def call() -> str:
        with app_of(database) as session, session.conn.transaction():
            session.rows(f"SET TRANSACTION ISOLATION LEVEL {level}")
            session.rows("SELECT 1")
            snapshots.wait(30)
            try:
                return str(session.stage(key="k").outcome)
            except psycopg.errors.SerializationFailure:
                return "40001"

    snapshots = threading.Barrier(20)
    assert Counter(in_threads([call] * 20)) == {"created": 1, "40001": 19}
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches") == 1


def test_notification_follows_the_commit_and_only_the_commit(database: Database, app: App) -> None:
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        with app.conn.transaction(force_rollback=True):
            app.stage()
        with app.conn.transaction():
            app.stage()
            app.stage()
            listener.execute("SELECT 1")
            assert list(listener.notifies(timeout=0)) == []
        (told,) = listener.notifies(timeout=30, stop_after=1)
        assert (told.channel, told.payload) == ("pfsup_wake", "")
        assert list(listener.notifies(timeout=0)) == []


def test_delayed_envelope_wakes_dispatch_too(database: Database, app: App) -> None:
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        app.stage(available_at=datetime.now(UTC) + timedelta(hours=1))
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"actor": None}, "PF400", "actor null is not allowed", "letter or _ first"),
    ({"actor": "a b"}, "PF400", 'actor "a b" is not allowed', "letter or _ first"),
    ({"actor": "9a"}, "PF400", 'actor "9a"', "at most 128"),
    ({"actor": "a" * 129}, "PF400", "(129 characters) is not allowed", "at most 128"),
    ({"aggregate_id": ""}, "PF400", 'aggregate_id "" is not allowed', "1 to 200"),
    ({"aggregate_id": None}, "PF400", "aggregate_id null", "1 to 200"),
    ({"aggregate_id": "a\nb"}, "PF400", 'aggregate_id "a?b" is not allowed', "no control characters"),
    ({"key": "k" * 401}, "PF400", "delivery_key", "1 to 400"),
    ({"available_at": "infinity"}, "PF400", "available_at infinity is not allowed", "a time, or null for now"),
    ({"tenant": ""}, "PF400", 'tenant "" is not allowed', "1 to 200"),
    ({"tenant": {"a": 1}}, "PF400", "option tenant must be text, got object", ""),
    ({"queue": "a/b"}, "PF400", 'queue "a/b" is not allowed', "letter or _ first"),
    ({"headers": [1]}, "PF400", "a headers value of type array is not allowed", "a JSON object"),
    ({"max_attempts": 0}, "PF400", 'max_attempts "0" is not allowed', "1 to 1000000"),
    ({"max_attempts": "many"}, "PF400", 'max_attempts "many"', "1 to 1000000"),
    ({"on_conflict": "replace"}, "PF400", 'on_conflict "replace"', "rerun, keep or error"),
    ({"maxAttempts": 3}, "PF400", 'unknown option "maxAttempts"', 'did you mean "max_attempts"?'),
    ({"tennant": "x"}, "PF400", 'unknown option "tennant"', 'did you mean "tenant"?'),
    ({"zzz": 1}, "PF400", 'unknown option "zzz"', "known options: queue, tenant, headers, max_attempts, on_conflict"),
    ({"payload": "x" * 262144}, "PF413", "the limit is 262144 (256 KiB)", "stage its id"),
    ({"headers": {"a": "x" * 8192}}, "PF413", "the limit is 8192 (8 KiB)", "trace context"),
]


@pytest.mark.parametrize("bad", BAD, ids=[f"{n}-{b[2]}" for n, b in enumerate(BAD)])
def test_bad_argument_is_refused_with_its_state_text_and_the_next_step(
    owner: Owner, app: App, bad: tuple[dict[str, Any], str, str, str]
) -> None:
    arguments, sqlstate, text, hint = bad
    with pytest.raises(psycopg.Error) as e:
        app.stage(**arguments)
    assert e.value.sqlstate == sqlstate
    assert (e.value.diag.message_primary or "").startswith("cannot stage: ")
    assert text in (e.value.diag.message_primary or "")
    assert hint in (e.value.diag.message_hint or "")
    assert owner.value("SELECT count(*) FROM pfsup.async_dispatches") == 0


@pytest.mark.parametrize("options", ["[]", '"x"', "null", None])
def test_options_that_are_no_object_are_refused(app: App, options: str | None) -> None:
    with pytest.raises(psycopg.Error, match="options must be a JSON object") as e:
        app.rows("SELECT pfsup.stage('paint', '7', options => %s::jsonb)", options)
    assert e.value.sqlstate == "PF400"


def test_refusal_never_repeats_the_payload(app: App) -> None:
    with pytest.raises(psycopg.Error) as e:
        app.stage(actor="a b", payload={"card": "4111-1111"})
    said = (e.value.diag.message_primary, e.value.diag.message_detail, e.value.diag.message_hint, e.value.diag.context)
    assert "4111" not in " ".join(filter(None, said))


def test_largest_payload_is_stored_whole(owner: Owner, app: App) -> None:
    payload = "x" * (262144 - 12)
    assert owner.row(app.stage(payload=payload).id).payload == payload


def test_longest_names_are_stored(owner: Owner, app: App) -> None:
    number = app.stage(actor="a" * 128, aggregate_id="é" * 200, key="ü" * 400, tenant="t" * 200).id
    assert len(owner.row(number).delivery_key) == 400


def test_stage_by_parameter_name_in_plain_sql(app: App) -> None:
    row = app.one(
        "SELECT id, outcome, status FROM pfsup.stage(actor => 'paint', aggregate_id => '7', payload => %s,"
        " delivery_key => 'k', options => %s)",
        Jsonb({"n": 1}),
        Jsonb({"tenant": "acme"}),
    )
    assert row[1:] == ("created", "pending")
