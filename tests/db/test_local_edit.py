"""Local edit: started again only while its call is proved not to have begun; else unknown, and it stays so."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pfsup.domains.business import domain_queries
from pfsup.domains.decisions import Decision
from pfsup.domains.local_edit import LocalEdit
from support.database import Database
from support.link import TestLink, at_work
from support.plans import MODES, indexes, plan, sequential
from support.recovery import domain, domain_settings
from support.rows import Row, Rows
from support.waiting import auntil

pytestmark = pytest.mark.usefixtures("productflow")

CALLED = [None, "provider_pending", "provider_call", "provider_result_received", "", "Claimed", "a phase of tomorrow"]
SETTLE = (  # what a worker does with its result
    "UPDATE productflow.local_edit_tasks SET status = 'succeeded', finished_at = clock_timestamp()"
    " WHERE id = %s AND status = 'running' AND attempt_id = %s"
)


async def decided(database: Database, **section: Any) -> dict[Decision, int]:
    """What one look decided."""
    async with domain(database, "local_edit", **section) as edits:
        report = await edits.run()
    assert report.errors == []
    return dict(report.decisions)


async def lost(database: Database, rows: Rows, **section: Any) -> dict[Decision, int]:
    """What a second look decided, the takeover grace after the first."""
    async with domain(database, "local_edit", **section) as edits:
        assert dict((await edits.run()).decisions) == {Decision.STILL_RUNNING: 1}
        rows.awake()
        edits.clock.pass_(edits.looks.grace_s + 1)
        report = await edits.run()
    assert report.errors == []
    return dict(report.decisions)


def running(rows: Rows, **columns: Any) -> str:
    """A running edit under attempt a1, silent for two hours."""
    return rows.local_edit(**({"status": "running", "phase": "claimed", "attempt_id": "a1"} | columns))


def task(rows: Rows, number: str) -> Row:
    return rows.row("local_edit_tasks", number)


def actions(rows: Rows, number: str) -> list[tuple[str, str, str]]:
    """What the audit says of an edit."""
    return [(line.action, line.before, line.after) for line in rows.audited("local_edit", number)]


def assert_unknown(rows: Rows, number: str, why: str) -> None:
    """It is unknown, no machine touches it again, and nothing was sent out for it."""
    row = task(rows, number)
    assert (row.status, row.is_retryable, row.attempt_id, row.finished_at is not None) == ("unknown", False, None, True)
    assert why in row.error
    (entry,) = rows.audited("local_edit", number)
    assert (entry.before, entry.after, entry.who) == ("running", "unknown", "domain local_edit")
    assert why in entry.reason


async def test_claimed_edit_is_queued_and_sent_out_with_its_hash(productflow: Database, rows: Rows) -> None:
    edit = running(rows, request_hash="of the request", provider_ref="r1")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    row = task(rows, edit)
    assert (row.status, row.is_retryable) == ("queued", True)
    assert (row.attempt_id, row.phase, row.provider_ref, row.started_at, row.progress_at) == (None,) * 5
    envelope = rows.envelope(f"local_edit:{edit}")
    assert (envelope.status, envelope.actor, envelope.aggregate_id) == ("pending", "local_edit", edit)
    assert envelope.payload == {"task_id": edit, "request_hash": "of the request"}
    assert actions(rows, edit) == [("redispatch", "running", "queued")]
    line = rows.ledger("local_edit", edit)
    assert line is not None
    assert (line.recoveries, line.last_decision, line.evidence["phase"]) == (1, "redispatch", "claimed")


@pytest.mark.parametrize("phase", CALLED)
async def test_edit_of_any_other_phase_is_unknown_and_its_effect_with_it(
    productflow: Database, rows: Rows, phase: str | None
) -> None:
    edit = running(rows, phase=phase)
    effect = rows.effect("local_edit", edit)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, edit, repr(phase))
    assert task(rows, edit).phase == phase, "where a person asks"
    settled = rows.row("provider_effects", effect)
    assert (settled.state, settled.settled_at is not None) == ("unknown", True)
    assert rows.envelopes(f"local_edit:{edit}") == []


@pytest.mark.parametrize("state", ["pending", "applied", "unknown"])
@pytest.mark.parametrize("attempt", ["a1", "a0", None])
async def test_claimed_edit_whose_journal_has_a_call_is_unknown(
    productflow: Database, rows: Rows, state: str, attempt: str | None
) -> None:
    edit = running(rows)
    effect = rows.effect("local_edit", edit, state=state, attempt_id=attempt)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, edit, f"outside calls of it: {state}")
    assert rows.row("provider_effects", effect).state == ("unknown" if state == "pending" else state)


async def test_void_call_and_calls_of_others_do_not_count(productflow: Database, rows: Rows) -> None:
    edit = running(rows)
    rows.effect("local_edit", edit, state="void")
    others = [rows.effect("local_edit", "another"), rows.effect("image_session", edit)]
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert [rows.row("provider_effects", effect).state for effect in others] == ["pending", "pending"]


async def test_calls_of_others_stay_open_when_an_edit_ends(productflow: Database, rows: Rows) -> None:
    running(rows, phase="provider_call")
    others = [rows.effect("local_edit", "another"), rows.effect("agent", "7")]
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert [rows.row("provider_effects", effect).state for effect in others] == ["pending", "pending"]


async def test_queued_edit_is_sent_out_as_it_is(productflow: Database, rows: Rows) -> None:
    """Whatever an earlier run left on it, and at no cost: it only waited."""
    edit = rows.local_edit(status="queued", phase="provider_call", attempt_id="a0")
    effect = rows.effect("local_edit", edit)
    before = task(rows, edit)
    assert await decided(productflow, max_recoveries=0) == {Decision.REDISPATCH: 1}
    assert task(rows, edit) == before
    assert rows.row("provider_effects", effect).state == "pending"
    assert rows.envelope(f"local_edit:{edit}").payload == {"task_id": edit, "request_hash": "h1"}
    line = rows.ledger("local_edit", edit)
    assert line is not None
    assert line.recoveries == 0


@pytest.mark.parametrize(
    "times",
    [
        {"started_at": None, "progress_at": None},
        {"progress_at": None},
        {"started_at": None},
        {"progress_at": "ago 21 minutes"},
    ],
)
async def test_edit_without_a_sign_of_life_for_twenty_minutes_is_silent(
    productflow: Database, rows: Rows, times: dict[str, Any]
) -> None:
    edit = running(rows, **times)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert task(rows, edit).status == "queued"


@pytest.mark.parametrize(
    "columns",
    [
        {"progress_at": "ago 19 minutes"},
        {"progress_at": None, "started_at": "ago 19 minutes"},
        {"is_retryable": False},
        {"envelope": "pending"},
        {"envelope": "held"},
        {"envelope": "sent"},
        {"envelope": "alive"},
        {"status": "queued", "envelope": "pending"},
        {"status": "queued", "envelope": "dead"},
        {"status": "queued", "envelope": "unknown"},
        {"status": "queued", "is_retryable": False},
        {"status": "succeeded"},
        {"status": "failed"},
        {"status": "cancelled"},
        {"status": "unknown"},
    ],
    ids=lambda columns: ", ".join(f"{name} {value}" for name, value in columns.items()),
)
async def test_edit_that_is_looked_after_or_over_is_left_alone(
    productflow: Database, rows: Rows, columns: dict[str, Any]
) -> None:
    edit = running(rows, **({"phase": "provider_call"} | columns))
    before, sent = task(rows, edit), rows.envelopes(f"local_edit:{edit}")
    assert await decided(productflow) == {}
    assert (task(rows, edit), rows.envelopes(f"local_edit:{edit}")) == (before, sent)
    assert rows.ledger("local_edit", edit) is None


async def test_lost_run_is_put_back_in_line_at_the_second_look(productflow: Database, rows: Rows) -> None:
    """However fresh its sign of life is: the lease says that its worker is gone."""
    edit = running(rows, progress_at="ago 1 minute", envelope="lost")
    before = rows.envelope(f"local_edit:{edit}")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    after = rows.envelope(f"local_edit:{edit}")
    assert (after.id, after.status, after.lease_token, after.recoveries) == (before.id, "pending", None, 0)
    assert (task(rows, edit).status, task(rows, edit).attempt_id) == ("queued", None)


async def test_lost_run_that_may_have_called_ends_unknown_with_its_envelope(productflow: Database, rows: Rows) -> None:
    edit = running(rows, phase="provider_call", envelope="lost")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, edit, "'provider_call'")
    envelope = rows.envelope(f"local_edit:{edit}")
    assert (envelope.status, envelope.last_error) == ("unknown", task(rows, edit).error)


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_lost_run_whose_own_journal_has_a_call_is_unknown(productflow: Database, rows: Rows, status: str) -> None:
    """Whatever phase the row says, and even where its worker had not marked the row yet."""
    edit = running(rows, status=status)
    rows.stand_for(f"local_edit:{edit}", "lost", effect="begun")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    row = task(rows, edit)
    assert (row.status, row.is_retryable) == ("unknown", False)
    assert rows.envelope(f"local_edit:{edit}").status == "unknown"


async def test_worker_that_beats_again_keeps_its_edit(productflow: Database, rows: Rows) -> None:
    edit = running(rows, phase="provider_call", envelope="lost")
    async with domain(productflow, "local_edit") as edits:
        await edits.run()
        rows.awake()
        rows.all("UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() + interval '1 minute'")
        edits.clock.pass_(edits.looks.grace_s + 1)
        assert dict((await edits.run()).decisions) == {}
    assert (task(rows, edit).status, rows.envelope(f"local_edit:{edit}").status) == ("running", "running")


@pytest.mark.parametrize(
    ("envelope", "why", "decision"),
    [
        ("dead", "the stream refused it", Decision.GIVE_UP),
        ("unknown", "nobody knows", Decision.OUTCOME_UNKNOWN),
    ],
)
async def test_ended_envelope_ends_its_running_edit_with_its_reason(
    productflow: Database, rows: Rows, envelope: str, why: str, decision: Decision
) -> None:
    edit = running(rows, progress_at="ago 1 minute", envelope=envelope)
    effect = rows.effect("local_edit", edit)
    before = rows.envelope(f"local_edit:{edit}")
    assert await decided(productflow) == {decision: 1}
    assert_unknown(rows, edit, why)
    assert rows.envelope(f"local_edit:{edit}") == before
    assert rows.row("provider_effects", effect).state == "unknown"


async def test_edit_that_costs_too_many_recoveries_is_unknown(productflow: Database, rows: Rows) -> None:
    edit = running(rows)
    for _ in range(2):
        assert await decided(productflow, max_recoveries=2) == {Decision.REDISPATCH: 1}
        rows.awake()
        rows.all(
            "UPDATE productflow.local_edit_tasks SET status = 'running', phase = 'claimed', attempt_id = 'a2',"
            " started_at = clock_timestamp() - interval '1 hour'"
        )
        rows.all(
            "UPDATE pfsup.async_dispatches SET status = 'consumed', sent_at = finished, finished_at = finished"
            " FROM clock_timestamp() AS finished WHERE finished_at IS NULL"
        )
    assert await decided(productflow, max_recoveries=2) == {Decision.GIVE_UP: 1}
    row = task(rows, edit)
    assert (row.status, row.is_retryable) == ("unknown", False)
    assert "2 recoveries did not help" in row.error
    assert [action for action, *_ in actions(rows, edit)] == ["redispatch", "redispatch", "give_up"]


async def test_edit_whose_worker_dies_before_it_marks_the_row_is_bounded_too(productflow: Database, rows: Rows) -> None:
    """A queued row behind a lost run: the task that kills every worker that takes it."""
    edit = rows.local_edit(status="queued", envelope="lost")
    assert await lost(productflow, rows, max_recoveries=0) == {Decision.GIVE_UP: 1}
    assert (task(rows, edit).status, rows.envelope(f"local_edit:{edit}").status) == ("unknown", "dead")


async def test_late_worker_is_refused_after_unknown(productflow: Database, rows: Rows) -> None:
    edit = running(rows, phase="provider_call")
    with psycopg.connect(productflow.worker_url, autocommit=True) as late:
        assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
        assert late.execute(SETTLE.encode(), (edit, "a1")).rowcount == 0
    assert task(rows, edit).status == "unknown"
    assert await decided(productflow) == {}, "and it stays so"


@pytest.mark.parametrize("table", ["local_edit_tasks", "provider_effects"])
async def test_edit_with_a_lock_on_it_is_left_for_the_next_cycle(productflow: Database, rows: Rows, table: str) -> None:
    """A writer that locks the effect before the task cannot meet recovery in a deadlock."""
    edit = running(rows, phase="provider_call")
    locked = {"local_edit_tasks": edit, "provider_effects": rows.effect("local_edit", edit)}[table]
    with psycopg.connect(productflow.url) as writer:
        writer.execute(f"SELECT FROM productflow.{table} WHERE id = %s FOR UPDATE".encode(), [locked])
        async with domain(productflow, "local_edit") as edits:
            report = await edits.run()
            assert (report.examined, report.locked) == (0, int(table == "provider_effects"))
            writer.execute("UPDATE productflow.local_edit_tasks SET result = '{}' WHERE id = %s", [edit])
            writer.commit()
            assert (await edits.run()).decisions == {Decision.OUTCOME_UNKNOWN: 1}


async def test_observer_says_what_it_would_do_and_writes_nothing(productflow: Database, rows: Rows) -> None:
    edits = [running(rows), running(rows, phase="provider_call"), rows.local_edit()]
    before = [task(rows, edit) for edit in edits]
    async with domain(productflow, "local_edit", mode="observe") as observer:
        report = await observer.run()
    assert report.decisions == {Decision.REDISPATCH: 2, Decision.OUTCOME_UNKNOWN: 1}
    assert [task(rows, edit) for edit in edits] == before
    assert rows.all("SELECT FROM pfsup.recovery") == rows.all("SELECT FROM pfsup.async_dispatches") == []


async def test_role_of_the_section_recovers_at_its_start(productflow: Database, rows: Rows) -> None:
    edit = running(rows)
    link = TestLink(name="local_edit")
    async with at_work(LocalEdit(domain_settings(productflow, "local_edit"), "local_edit"), link):
        await auntil(lambda: link.figures, what="the first report")
    assert (link.figures["redispatch"], link.woken_peers) == (1, ["dispatch"])
    assert rows.envelope(f"local_edit:{edit}").status == "pending"


def fill(rows: Rows) -> None:
    """100,000 edits with an effect, an envelope and a line in the ledger each; 1 % open, of which half wait."""
    rows.all(
        "INSERT INTO productflow.local_edit_tasks (id, request_hash, status, created_at)"
        " SELECT n::text, 'h', CASE mod(n, 200) WHEN 0 THEN 'running' WHEN 1 THEN 'queued' ELSE 'succeeded' END,"
        " clock_timestamp() - n * interval '1 s' FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO productflow.provider_effects (domain, owner_id, state)"
        " SELECT 'local_edit', id, 'applied' FROM productflow.local_edit_tasks"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
        " SELECT 'local_edit', 'local_edit', id, 'local_edit:' || id FROM productflow.local_edit_tasks"
    )
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)"
        " SELECT 'local_edit', id, clock_timestamp() FROM productflow.local_edit_tasks"
    )
    rows.all("VACUUM ANALYZE")


THROUGH = {
    "find": ("local_edit_tasks", "local_edit_tasks_open"),
    "recheck": ("provider_effects", "provider_effects_owner"),
    "requeue": ("local_edit_tasks", "local_edit_tasks_pkey"),
    "lose": ("provider_effects", "provider_effects_owner"),
}


def test_statements_read_no_big_table_from_end_to_end(productflow: Database, rows: Rows) -> None:
    """The texts as loaded, prepared, with custom and with generic plans."""
    fill(rows)
    queries = domain_queries("pfsup.domains.local_edit", schema="pfsup", productflow="productflow")
    said = {"domain": "local_edit", "stale_s": 1200.0, "after_at": "-infinity", "after_id": "", "page": 104, "most": 26}
    said |= {"id": "4800", "reason": "why"}
    big = ("local_edit_tasks", "provider_effects", "async_dispatches", "recovery_ledger")
    for name, (table, index) in THROUGH.items():
        for mode in MODES:
            steps = plan(productflow, queries[name], said, mode=mode)
            assert sequential(steps, *big) == [], (name, mode)
            assert index in indexes(steps, table), (name, mode)
