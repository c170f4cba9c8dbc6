"""What a person may do: from which status to which, always with who and why, always on the record."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from support.database import Database
from support.runs import Owner, Row, Session, Worker

STATUSES = ("pending", "held", "sent", "running", "consumed", "rejected", "cancelled", "dead", "unknown")
# act → what it makes of a row in each status without an unproved effect; a status that is missing is refused
OUTCOMES: dict[str, dict[str, tuple[str, str]]] = {
    "retry": {"pending": ("already", "pending"), "dead": ("done", "pending")},
    "discard": {
        "pending": ("done", "cancelled"),
        "held": ("done", "cancelled"),
        "sent": ("done", "cancelled"),
        "dead": ("done", "cancelled"),
        "unknown": ("done", "cancelled"),
        "cancelled": ("already", "cancelled"),
    },
    "resend": {"pending": ("already", "pending"), "sent": ("done", "pending")},
    "release": {"pending": ("already", "pending"), "held": ("done", "pending")},
    "succeeded": {"unknown": ("done", "consumed")},
    "failed": {"unknown": ("done", "rejected")},
    "retry it": {"unknown": ("done", "pending")},
}


class Operator(Session):
    """A person's role."""

    def act(self, act: str, number: int) -> Row:
        if act in {"succeeded", "failed", "retry it"}:
            return self.settle_unknown(number, act.removesuffix(" it"))
        return self.one(f"SELECT * FROM pfsup.{act}(%s, 'ann', 'because')", number)

    def settle_unknown(self, number: int, verdict: str | None) -> Row:
        return self.one("SELECT * FROM pfsup.settle_unknown(%s, %s, 'ann', 'asked the provider')", number, verdict)

    def pause(self, kind: str, name: str, until: object = None) -> Row:
        return self.one("SELECT * FROM pfsup.pause(%s, %s, 'ann', 'because', %s)", kind, name, until)

    def resume(self, kind: str, name: str) -> Row:
        return self.one("SELECT * FROM pfsup.resume(%s, %s, 'bob', 'all well')", kind, name)


@pytest.fixture
def person(database: Database) -> Generator[Operator]:
    with psycopg.connect(database.operate_url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield Operator(conn)


def row_in(owner: Owner, worker: Worker, status: str, *, key: str | None = None) -> int:
    """A row that came to its status by the straight way, with used-up counters."""
    number = owner.stage(key=key) if status in {"pending", "held"} else owner.sent(key=key)
    if status in {"running", "consumed", "rejected", "dead", "unknown"}:
        run = worker.begun(number)
        if status != "running":
            worker.settle(run, status)
    if status in {"held", "cancelled"}:
        owner.rows(
            "UPDATE pfsup.async_dispatches SET status = %s, check_at = NULL,"
            " finished_at = CASE WHEN %s = 'held' THEN NULL ELSE now() END WHERE id = %s",
            status,
            status,
            number,
        )
    owner.rows(
        "UPDATE pfsup.async_dispatches SET attempts = 7, send_attempts = 8, recoveries = 9 WHERE id = %s", number
    )
    return number


@pytest.mark.parametrize("act", OUTCOMES)
def test_act_does_what_its_table_says_for_every_status(
    owner: Owner, worker: Worker, person: Operator, act: str
) -> None:
    for status in STATUSES:
        number = row_in(owner, worker, status)
        before = owner.row(number)
        expected = OUTCOMES[act].get(status)
        if expected is None:
            refused(person, act, number, status)
        else:
            assert person.act(act, number)[:] == (number, *expected), status
            assert owner.status(number) == expected[1]
        written = expected is not None and expected[0] == "done"
        assert (owner.row(number) != before) is written, status
        lines = "SELECT count(*) FROM pfsup.audit WHERE kind = 'operator' AND dispatch_id = %s"
        assert person.value(lines, number) == written, status


def refused(person: Operator, act: str, number: int, status: str) -> None:
    with pytest.raises(psycopg.Error, match=rf"cannot \w+ {number}: it is {status}") as e:
        person.act(act, number)
    assert e.value.sqlstate == "PF410"
    assert e.value.diag.message_hint


def test_act_leaves_who_why_before_after_and_the_counters(owner: Owner, worker: Worker, person: Operator) -> None:
    number = row_in(owner, worker, "dead")
    person.act("retry", number)
    line = person.one("SELECT * FROM pfsup.audit WHERE kind = 'operator'")
    assert (line.who, line.reason, line.action, line.before, line.after) == (
        "ann",
        "because",
        "retry",
        "dead",
        "pending",
    )
    assert (line.subject, line.dispatch_id) == (str(number), number)
    assert line.evidence == {"login": "t_operate", "effect": "none", "attempts": 7, "send_attempts": 8, "recoveries": 9}


def test_retry_gives_all_chances_again_and_forgets_the_recovery_ledger(
    owner: Owner, worker: Worker, person: Operator
) -> None:
    number = row_in(owner, worker, "dead")
    owner.rows(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at) VALUES"
        " ('envelope', %s, now()), ('delivery', '7', now()), ('delivery', '8', now()), ('envelope', '7', now())",
        str(number),
    )
    person.act("retry", number)
    row = owner.row(number)
    assert (row.attempts, row.send_attempts, row.recoveries, row.finished_at, row.worker) == (0, 0, 0, None, None)
    left = owner.rows("SELECT domain, candidate_id FROM pfsup.recovery_ledger")
    assert {tuple(entry) for entry in left} == {("delivery", "8"), ("envelope", "7")}


def test_retry_of_a_waiting_row_makes_it_due_now_and_keeps_its_counters(owner: Owner, person: Operator) -> None:
    number = owner.stage()
    owner.rows("UPDATE pfsup.async_dispatches SET available_at = now() + interval '1 h', attempts = 3")
    assert person.act("retry", number).outcome == "done"
    row = owner.row(number)
    assert row.attempts == 3
    assert row.available_at <= owner.value("SELECT clock_timestamp()")


@pytest.mark.parametrize("act", ["retry", "resend", "release"])
def test_row_made_due_by_a_person_wakes_dispatch(
    database: Database, owner: Owner, worker: Worker, person: Operator, act: str
) -> None:
    number = row_in(owner, worker, {"retry": "dead", "resend": "sent", "release": "held"}[act])
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        person.act(act, number)
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1


@pytest.mark.parametrize(
    ("verdict", "becomes"),
    [
        ("succeeded", ("consumed", "done", "done")),
        ("failed", ("rejected", "none", "void")),
        ("retry", ("pending", "none", "void")),
    ],
)
def test_person_settles_an_effect_that_nobody_could_prove(
    owner: Owner, worker: Worker, person: Operator, verdict: str, becomes: tuple[str, str, str]
) -> None:
    for began_as in ("unknown", "dead"):
        run = worker.begun(owner.sent())
        worker.effect(run, "begun")
        worker.settle(run, "unknown")
        owner.rows("UPDATE pfsup.async_dispatches SET status = %s, effect = 'begun' WHERE id = %s", began_as, run.id)
        assert person.settle_unknown(run.id, verdict)[:] == (run.id, "done", becomes[0])
        row = owner.row(run.id)
        state = owner.value("SELECT state FROM pfsup.dispatch_effects WHERE dispatch_id = %s", run.id)
        assert (row.status, row.effect, state) == becomes, began_as


@pytest.mark.parametrize(("act", "status"), [("retry", "dead"), ("release", "held")])
def test_row_with_an_unproved_effect_is_never_made_due_without_a_verdict(
    owner: Owner, worker: Worker, person: Operator, act: str, status: str
) -> None:
    number = row_in(owner, worker, status)
    owner.rows("UPDATE pfsup.async_dispatches SET effect = 'begun'")
    with pytest.raises(psycopg.Error, match="with an effect begun and not proved") as e:
        person.act(act, number)
    assert (e.value.sqlstate, "settle_unknown" in (e.value.diag.message_hint or "")) == ("PF410", True)


@pytest.mark.parametrize("verdict", ["maybe", None])
def test_verdict_that_is_none_of_three_is_refused(
    owner: Owner, worker: Worker, person: Operator, verdict: str | None
) -> None:
    number = row_in(owner, worker, "unknown")
    with pytest.raises(psycopg.Error, match=r"the verdict .* is not allowed") as e:
        person.settle_unknown(number, verdict)
    assert e.value.sqlstate == "PF400"


@pytest.mark.parametrize("act", ["discard", "succeeded", "failed"])
def test_key_freed_by_a_person_stages_the_wish_behind_it(
    owner: Owner, worker: Worker, person: Operator, act: str
) -> None:
    run = worker.begun(owner.sent(key="k"))
    owner.stage(key="k", payload={"v": 2})
    worker.settle(run, "unknown")
    person.act(act, run.id)
    row = owner.one("SELECT status, payload FROM pfsup.async_dispatches WHERE id <> %s", run.id)
    assert row[:] == ("pending", {"v": 2})


@pytest.mark.parametrize("act", ["retry", "discard", "resend", "release", "succeeded"])
def test_act_on_an_unknown_id_raises_pf404(person: Operator, act: str) -> None:
    with pytest.raises(psycopg.Error, match=r"cannot \w+ 4711: there is no such envelope") as e:
        person.act(act, 4711)
    assert e.value.sqlstate == "PF404"


NOBODY: list[tuple[str | None, str | None, str]] = [
    ("", "n", "who"),
    (None, "n", "who"),
    ("a\nb", "n", "who"),
    ("a", "", "note"),
    ("a", None, "note"),
]


@pytest.mark.parametrize("act", ["retry", "discard", "resend", "release"])
def test_act_without_who_or_why_is_refused(owner: Owner, person: Operator, act: str) -> None:
    number = owner.stage()
    for who, note, text in NOBODY:
        with pytest.raises(psycopg.Error, match=rf"cannot {act}: (the )?{text}") as e:
            person.rows(f"SELECT pfsup.{act}(%s, %s, %s)", number, who, note)
        assert e.value.sqlstate == "PF400"


@pytest.mark.parametrize("kind", ["actor", "queue", "tenant", "domain"])
def test_pause_and_resume_are_kept_and_audited(owner: Owner, person: Operator, kind: str) -> None:
    assert person.pause(kind, "slow").outcome == "paused"
    assert owner.one("SELECT kind, name, who, why, until FROM pfsup.controls")[:] == (
        kind,
        "slow",
        "ann",
        "because",
        None,
    )
    assert person.resume(kind, "slow").outcome == "resumed"
    assert owner.value("SELECT count(*) FROM pfsup.controls") == 0
    lines = person.rows("SELECT action, who, subject, before, after FROM pfsup.audit ORDER BY id")
    assert [line[:] for line in lines] == [
        ("pause", "ann", f"{kind}:slow", "open", "paused"),
        ("resume", "bob", f"{kind}:slow", "paused", "open"),
    ]


def test_pause_again_takes_the_new_end(owner: Owner, person: Operator) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    person.pause("queue", "slow")
    assert person.pause("queue", "slow", until)[:] == ("queue", "slow", until, "changed")
    assert owner.value("SELECT until FROM pfsup.controls") == until


def test_resume_of_what_is_not_paused_answers_already_and_writes_nothing(person: Operator) -> None:
    assert person.resume("queue", "slow").outcome == "already"
    assert person.value("SELECT count(*) FROM pfsup.audit") == 0


def test_resume_wakes_dispatch(database: Database, person: Operator) -> None:
    person.pause("queue", "slow")
    with psycopg.connect(database.run_url, autocommit=True) as listener:
        listener.execute("LISTEN pfsup_wake")
        person.resume("queue", "slow")
        assert len(list(listener.notifies(timeout=30, stop_after=1))) == 1


@pytest.mark.parametrize(
    ("kind", "name", "until", "text"),
    [
        ("kueue", "q", None, 'the kind "kueue" is not allowed'),
        (None, "q", None, "the kind null is not allowed"),
        ("queue", "", None, 'the name "" is not allowed'),
        ("queue", "q", datetime(2020, 1, 1, tzinfo=UTC), "that is not in the future"),
        ("queue", "q", "infinity", "that is not in the future"),
    ],
)
def test_pause_of_nonsense_is_refused(person: Operator, kind: str, name: str, until: object, text: str) -> None:
    with pytest.raises(psycopg.Error, match=text) as e:
        person.pause(kind, name, until)
    assert e.value.sqlstate == "PF400"
