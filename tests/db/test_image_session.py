"""Image session: it goes on with the next image only where every call so far is proved; else unknown for good."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pfsup.domains.business import domain_queries
from pfsup.domains.decisions import Decision
from pfsup.domains.image_session import ImageSession
from support.database import Database
from support.link import TestLink, at_work
from support.plans import MODES, indexes, plan, sequential
from support.recovery import domain, domain_settings
from support.rows import Row, Rows
from support.waiting import auntil

pytestmark = pytest.mark.usefixtures("productflow")

SETTLE = (  # what a worker does with its last image
    "UPDATE productflow.image_tasks SET status = 'succeeded', finished_at = clock_timestamp()"
    " WHERE id = %s AND status = 'running' AND active_attempt_id = %s"
)


async def decided(database: Database, **section: Any) -> dict[Decision, int]:
    """What one look decided."""
    async with domain(database, "image_session", **section) as sessions:
        report = await sessions.run()
    assert report.errors == []
    return dict(report.decisions)


async def lost(database: Database, rows: Rows, **section: Any) -> dict[Decision, int]:
    """What a second look decided, the takeover grace after the first."""
    async with domain(database, "image_session", **section) as sessions:
        assert dict((await sessions.run()).decisions) == {Decision.STILL_RUNNING: 1}
        rows.awake()
        sessions.clock.pass_(sessions.looks.grace_s + 1)
        report = await sessions.run()
    assert report.errors == []
    return dict(report.decisions)


def running(rows: Rows, *stored: int, **columns: Any) -> str:
    """A running session of four images under attempt a1, silent for two hours, with these images stored."""
    known: dict[str, Any] = {
        "status": "running",
        "phase": "running",
        "active_attempt_id": "a1",
        "requested_candidates": 4,
    }
    made = rows.image_task(**(known | columns))
    rows.images(made, *stored)
    return made


def effect(rows: Rows, session: str, first_index: int = 0, **columns: Any) -> str:
    """A call for one image from `first_index`, pending, of attempt a1, unless the columns say otherwise."""
    return rows.effect("image_session", session, first_index=first_index, **columns)


def task(rows: Rows, number: str) -> Row:
    return rows.row("image_tasks", number)


def state(rows: Rows, number: str) -> str:
    return rows.row("provider_effects", number).state


def assert_queued(rows: Rows, number: str) -> None:
    """It is queued as if no worker had had it, and sent out once."""
    row = task(rows, number)
    assert (row.status, row.is_retryable) == ("queued", True)
    assert (row.active_attempt_id, row.provider_ref, row.phase, row.started_at, row.progress_at) == (None,) * 5
    (envelope,) = rows.envelopes(f"image_session:{number}")
    assert (envelope.status, envelope.actor, envelope.payload) == ("pending", "image_session", {"task_id": number})


def assert_unknown(rows: Rows, number: str, why: str) -> None:
    """It is unknown, no machine touches it again, and nothing was sent out for it."""
    row = task(rows, number)
    assert (row.status, row.is_retryable, row.active_attempt_id) == ("unknown", False, None)
    assert row.finished_at is not None
    assert why in row.error
    (entry,) = rows.audited("image_session", number)
    assert (entry.before, entry.after, entry.who) == ("running", "unknown", "domain image_session")
    assert why in entry.reason
    assert all(line.status in ("dead", "unknown") for line in rows.envelopes(f"image_session:{number}"))


@pytest.mark.parametrize("phase", ["running", "candidate_saved"])
async def test_session_between_two_calls_goes_on_with_the_next_image(
    productflow: Database, rows: Rows, phase: str
) -> None:
    session = running(rows, 0, 1, phase=phase, provider_ref="r1", completed_candidates=2)
    made = [effect(rows, session, 0, state="applied"), effect(rows, session, 1, state="applied", attempt_id="a0")]
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)
    assert [state(rows, number) for number in made] == ["applied", "applied"]
    assert task(rows, session).completed_candidates == 2
    (entry,) = rows.audited("image_session", session)
    assert (entry.action, entry.before, entry.after) == ("redispatch", "running", "queued")
    line = rows.ledger("image_session", session)
    assert line is not None
    assert (line.recoveries, line.evidence["missing"], line.evidence["attempt_id"]) == (1, 2, "a1")


async def test_stored_images_are_repaired_before_they_are_judged(productflow: Database, rows: Rows) -> None:
    """The images were stored, and the worker died before it said so in the journal."""
    session = running(rows, 0, 1, 2, phase="candidate_saved")
    stored = effect(rows, session, 0, count=3)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)
    repaired = rows.row("provider_effects", stored)
    assert (repaired.state, repaired.settled_at is not None) == ("applied", True)
    line = rows.ledger("image_session", session)
    assert line is not None
    assert [seen["state"] for seen in line.evidence["effects"]] == ["applied"]


@pytest.mark.parametrize(
    ("stored", "call", "why"),
    [
        ((0,), {"count": 2}, "images 0 to 1 is pending"),
        ((), {}, "image 0 is pending"),
        ((0, 1), {"first_index": 1, "count": 2}, "images 1 to 2 is pending"),
        ((0,), {"attempt_id": "a0"}, "is pending (of another attempt)"),
        ((0,), {"attempt_id": None}, "is pending (of another attempt)"),
    ],
    ids=["half stored", "nothing stored", "its end missing", "another attempt's", "nobody's"],
)
async def test_pending_call_that_is_not_wholly_stored_by_the_active_attempt_is_unknown(
    productflow: Database, rows: Rows, stored: tuple[int, ...], call: dict[str, Any], why: str
) -> None:
    session = running(rows, *stored, phase="candidate_saved")
    pending = effect(rows, session, **call)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, why)
    assert state(rows, pending) == "unknown"


async def test_one_repaired_call_does_not_excuse_another(productflow: Database, rows: Rows) -> None:
    session = running(rows, 0, phase="candidate_saved")
    made = [effect(rows, session, 0), effect(rows, session, 1)]
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, "image 1 is pending")
    assert [state(rows, number) for number in made] == ["applied", "unknown"]


@pytest.mark.parametrize("attempt", ["a1", "a0", None])
async def test_call_that_is_unknown_already_keeps_it_unknown(
    productflow: Database, rows: Rows, attempt: str | None
) -> None:
    """Even where its image is stored: that it was one call, nobody can say."""
    session = running(rows, 0, phase="candidate_saved")
    effect(rows, session, 0, state="unknown", attempt_id=attempt)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, "image 0 is unknown")


@pytest.mark.parametrize(
    ("stored", "call", "why"),
    [
        ((0,), {"first_index": 1}, "is applied, and not all of it is stored"),
        ((0,), {"first_index": 0, "count": 4}, "is applied, and not all of it is stored"),
        ((), {"first_index": 3}, "is applied, and not all of it is stored"),
        ((0, 2), {"first_index": 2}, "covers image 2, which is next"),
    ],
    ids=["the next", "begun before the next", "far ahead", "counted to"],
)
async def test_applied_call_without_its_images_or_over_the_next_is_unknown(
    productflow: Database, rows: Rows, stored: tuple[int, ...], call: dict[str, Any], why: str
) -> None:
    session = running(rows, *stored, phase="candidate_saved", completed_candidates=4)
    effect(rows, session, state="applied", **call)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, why)


async def test_counter_ahead_of_the_images_proves_nothing(productflow: Database, rows: Rows) -> None:
    """Nothing says that a call was made for what is missing, so it is made."""
    session = running(rows, 0, phase="candidate_saved", completed_candidates=9)
    effect(rows, session, 0, state="applied")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)


async def test_void_calls_and_calls_of_others_do_not_count(productflow: Database, rows: Rows) -> None:
    session = running(rows, 0)
    effect(rows, session, 1, state="void")
    others = [effect(rows, "another"), rows.effect("local_edit", session)]
    rows.images("another", 1)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)
    assert [state(rows, number) for number in others] == ["pending", "pending"]


async def test_calls_of_others_stay_open_when_a_session_ends(productflow: Database, rows: Rows) -> None:
    running(rows, phase="provider_call")
    others = [effect(rows, "another"), rows.effect("agent", "7")]
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert [state(rows, number) for number in others] == ["pending", "pending"]


@pytest.mark.parametrize("index", [0, 2, 9])
async def test_session_with_an_image_in_the_making_is_unknown(productflow: Database, rows: Rows, index: int) -> None:
    session = running(rows, 0, 1, active_candidate_index=index)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, f"image {index} was being made")
    assert task(rows, session).active_candidate_index == index, "where a person asks"


@pytest.mark.parametrize("phase", [None, "", "claimed", "provider_call", "Running", "a phase of tomorrow"])
async def test_session_of_any_other_phase_is_unknown(productflow: Database, rows: Rows, phase: str | None) -> None:
    session = running(rows, phase=phase)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, repr(phase))


@pytest.mark.parametrize("phase", [None, "running", "candidate_saved"])
@pytest.mark.parametrize("times", [{}, {"started_at": None, "progress_at": None}])
async def test_running_session_without_an_attempt_goes_back_to_queued(
    productflow: Database, rows: Rows, phase: str | None, times: dict[str, None]
) -> None:
    session = running(rows, 0, active_attempt_id=None, phase=phase, **times)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)


@pytest.mark.parametrize(
    ("columns", "call"),
    [({"phase": "provider_call"}, None), ({"active_candidate_index": 0}, None), ({}, "pending"), ({}, "applied")],
)
async def test_session_without_an_attempt_is_unknown_where_a_call_may_have_begun(
    productflow: Database, rows: Rows, columns: dict[str, Any], call: str | None
) -> None:
    session = running(rows, **({"active_attempt_id": None, "phase": None} | columns))
    if call:
        effect(rows, session, state=call, attempt_id=None)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert task(rows, session).status == "unknown"


@pytest.mark.parametrize(
    ("stored", "call"),
    [
        ((0, 1, 2, 3), None),
        ((0, 1, 2, 3, 4, 5), None),
        ((7, 2147483647), None),
        ((0, 1, 2, 3, 4, 5), {"first_index": 4, "count": 2}),
    ],
    ids=["all of them", "beyond the request", "beyond a gap", "called for beyond the request"],
)
async def test_images_beyond_the_request_get_a_decision(
    productflow: Database, rows: Rows, stored: tuple[int, ...], call: dict[str, int] | None
) -> None:
    """A worker finds that nothing is left, or what is."""
    session = running(rows, *stored, phase="candidate_saved")
    if call:
        effect(rows, session, state="applied", **call)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)


async def test_call_with_the_largest_numbers_gets_a_decision(productflow: Database, rows: Rows) -> None:
    session = running(rows, 2147483647)
    effect(rows, session, 2147483647, count=2147483647)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, "images 2147483647 to 4294967293 is pending")


async def test_queued_session_is_sent_out_as_it_is(productflow: Database, rows: Rows) -> None:
    """Whatever an earlier run left on it, and at no cost: it only waited."""
    session = running(rows, 0, status="queued", phase="provider_call", active_candidate_index=1)
    made = [effect(rows, session, 0), effect(rows, session, 1)]
    before = task(rows, session)
    assert await decided(productflow, max_recoveries=0) == {Decision.REDISPATCH: 1}
    assert task(rows, session) == before
    assert [state(rows, number) for number in made] == ["pending", "pending"]
    assert rows.envelope(f"image_session:{session}").payload == {"task_id": session}
    line = rows.ledger("image_session", session)
    assert line is not None
    assert line.recoveries == 0


@pytest.mark.parametrize(
    "times",
    [
        {"started_at": None, "progress_at": None},
        {"progress_at": None},
        {"started_at": None},
        {"progress_at": "ago 91 minutes"},
    ],
)
async def test_session_without_a_sign_of_life_for_ninety_minutes_is_silent(
    productflow: Database, rows: Rows, times: dict[str, Any]
) -> None:
    session = running(rows, **times)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert_queued(rows, session)


@pytest.mark.parametrize(
    "columns",
    [
        {"progress_at": "ago 89 minutes"},
        {"progress_at": None, "started_at": "ago 89 minutes"},
        {"progress_at": "ago 89 minutes", "active_attempt_id": None},
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
async def test_session_that_is_looked_after_or_over_is_left_alone(
    productflow: Database, rows: Rows, columns: dict[str, Any]
) -> None:
    session = running(rows, 0, **({"phase": "provider_call"} | columns))
    pending = effect(rows, session)
    before, sent = task(rows, session), rows.envelopes(f"image_session:{session}")
    assert await decided(productflow) == {}
    assert (task(rows, session), rows.envelopes(f"image_session:{session}")) == (before, sent)
    assert state(rows, pending) == "pending"
    assert rows.ledger("image_session", session) is None


async def test_lost_run_is_put_back_in_line_at_the_second_look(productflow: Database, rows: Rows) -> None:
    """However fresh its sign of life is: the lease says that its worker is gone."""
    session = running(rows, 0, progress_at="ago 1 minute", envelope="lost", phase="candidate_saved")
    stored = effect(rows, session)
    before = rows.envelope(f"image_session:{session}")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    after = rows.envelope(f"image_session:{session}")
    assert (after.id, after.status, after.lease_token, after.recoveries) == (before.id, "pending", None, 0)
    assert (task(rows, session).status, task(rows, session).active_attempt_id) == ("queued", None)
    assert state(rows, stored) == "applied"


async def test_lost_run_that_may_have_called_ends_unknown_with_its_envelope(productflow: Database, rows: Rows) -> None:
    session = running(rows, active_candidate_index=0, envelope="lost")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert_unknown(rows, session, "image 0 was being made")
    envelope = rows.envelope(f"image_session:{session}")
    assert (envelope.status, envelope.last_error) == ("unknown", task(rows, session).error)


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_lost_run_whose_own_journal_has_a_call_is_unknown(productflow: Database, rows: Rows, status: str) -> None:
    """Whatever the row says, and even where its worker had not marked it yet."""
    session = running(rows, status=status)
    rows.stand_for(f"image_session:{session}", "lost", effect="begun")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    row = task(rows, session)
    assert (row.status, row.is_retryable) == ("unknown", False)
    assert rows.envelope(f"image_session:{session}").status == "unknown"


async def test_worker_that_beats_again_keeps_its_session(productflow: Database, rows: Rows) -> None:
    session = running(rows, active_candidate_index=0, envelope="lost")
    async with domain(productflow, "image_session") as sessions:
        await sessions.run()
        rows.awake()
        rows.all("UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() + interval '1 minute'")
        sessions.clock.pass_(sessions.looks.grace_s + 1)
        assert dict((await sessions.run()).decisions) == {}
    assert (task(rows, session).status, rows.envelope(f"image_session:{session}").status) == ("running", "running")


@pytest.mark.parametrize(
    ("envelope", "why", "decision"),
    [
        ("dead", "the stream refused it", Decision.GIVE_UP),
        ("unknown", "nobody knows", Decision.OUTCOME_UNKNOWN),
    ],
)
async def test_ended_envelope_ends_its_running_session_with_its_reason(
    productflow: Database, rows: Rows, envelope: str, why: str, decision: Decision
) -> None:
    """What is stored is repaired all the same."""
    session = running(rows, 0, progress_at="ago 1 minute", envelope=envelope)
    made = [effect(rows, session, 0), effect(rows, session, 1)]
    before = rows.envelope(f"image_session:{session}")
    assert await decided(productflow) == {decision: 1}
    assert_unknown(rows, session, why)
    assert rows.envelope(f"image_session:{session}") == before
    assert [state(rows, number) for number in made] == ["applied", "unknown"]


async def test_session_that_costs_too_many_recoveries_is_unknown(productflow: Database, rows: Rows) -> None:
    session = running(rows)
    for _ in range(2):
        assert await decided(productflow, max_recoveries=2) == {Decision.REDISPATCH: 1}
        rows.awake()
        rows.all(
            "UPDATE productflow.image_tasks SET status = 'running', phase = 'running', active_attempt_id = 'a2',"
            " started_at = clock_timestamp() - interval '2 hours'"
        )
        rows.all(
            "UPDATE pfsup.async_dispatches SET status = 'consumed', sent_at = finished, finished_at = finished"
            " FROM clock_timestamp() AS finished WHERE finished_at IS NULL"
        )
    assert await decided(productflow, max_recoveries=2) == {Decision.GIVE_UP: 1}
    row = task(rows, session)
    assert (row.status, row.is_retryable) == ("unknown", False)
    assert "2 recoveries did not help" in row.error
    audit = rows.audited("image_session", session)
    assert [entry.action for entry in audit] == ["redispatch", "redispatch", "give_up"]


async def test_session_whose_worker_dies_before_it_marks_the_row_is_bounded_too(
    productflow: Database, rows: Rows
) -> None:
    """A queued row behind a lost run: the task that kills every worker that takes it."""
    session = rows.image_task(status="queued", envelope="lost")
    assert await lost(productflow, rows, max_recoveries=0) == {Decision.GIVE_UP: 1}
    assert (task(rows, session).status, rows.envelope(f"image_session:{session}").status) == ("unknown", "dead")


async def test_late_worker_is_refused_after_unknown(productflow: Database, rows: Rows) -> None:
    session = running(rows, active_candidate_index=0)
    with psycopg.connect(productflow.worker_url, autocommit=True) as late:
        assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
        assert late.execute(SETTLE.encode(), (session, "a1")).rowcount == 0
    assert task(rows, session).status == "unknown"
    assert await decided(productflow) == {}, "and it stays so"


@pytest.mark.parametrize("table", ["image_tasks", "provider_effects"])
async def test_session_with_a_lock_on_it_is_left_for_the_next_cycle(
    productflow: Database, rows: Rows, table: str
) -> None:
    """A writer that locks the effect before the task cannot meet recovery in a deadlock."""
    session = running(rows, 0, phase="candidate_saved")
    locked = {"image_tasks": session, "provider_effects": effect(rows, session)}[table]
    with psycopg.connect(productflow.url) as writer:
        writer.execute(f"SELECT FROM productflow.{table} WHERE id = %s FOR UPDATE".encode(), [locked])
        async with domain(productflow, "image_session") as sessions:
            report = await sessions.run()
            assert (report.examined, report.locked) == (0, int(table == "provider_effects"))
            writer.execute("UPDATE productflow.image_tasks SET completed_candidates = 1 WHERE id = %s", [session])
            writer.commit()
            assert (await sessions.run()).decisions == {Decision.REDISPATCH: 1}


async def test_observer_says_what_it_would_do_and_writes_nothing(productflow: Database, rows: Rows) -> None:
    """What would be repaired is as good as repaired."""
    sessions = [running(rows, 0, phase="candidate_saved"), running(rows, active_candidate_index=0), rows.image_task()]
    stored = effect(rows, sessions[0])
    before = [task(rows, session) for session in sessions]
    async with domain(productflow, "image_session", mode="observe") as observer:
        report = await observer.run()
    assert report.decisions == {Decision.REDISPATCH: 2, Decision.OUTCOME_UNKNOWN: 1}
    assert ([task(rows, session) for session in sessions], state(rows, stored)) == (before, "pending")
    assert rows.all("SELECT FROM pfsup.recovery") == rows.all("SELECT FROM pfsup.async_dispatches") == []


async def test_role_of_the_section_recovers_at_its_start(productflow: Database, rows: Rows) -> None:
    session = running(rows)
    link = TestLink(name="image_session")
    async with at_work(ImageSession(domain_settings(productflow, "image_session"), "image_session"), link):
        await auntil(lambda: link.figures, what="the first report")
    assert (link.figures["redispatch"], link.woken_peers) == (1, ["dispatch"])
    assert rows.envelope(f"image_session:{session}").status == "pending"


def fill(rows: Rows) -> None:
    """100,000 sessions with an image, an effect, an envelope and a line in the ledger each; 1 % open."""
    rows.all(
        "INSERT INTO productflow.image_tasks (id, status, created_at)"
        " SELECT n::text, CASE mod(n, 200) WHEN 0 THEN 'running' WHEN 1 THEN 'queued' ELSE 'succeeded' END,"
        " clock_timestamp() - n * interval '1 s' FROM generate_series(1, 100000) AS n"
    )
    rows.all(
        "INSERT INTO productflow.image_candidates (task_id, candidate_index, ref)"
        " SELECT id, 0, 'stored' FROM productflow.image_tasks"
    )
    rows.all(
        "INSERT INTO productflow.provider_effects (domain, owner_id, state)"
        " SELECT 'image_session', id, 'applied' FROM productflow.image_tasks"
    )
    rows.all(
        "INSERT INTO pfsup.async_dispatches (actor, queue, aggregate_id, delivery_key)"
        " SELECT 'image_session', 'image_session', id, 'image_session:' || id FROM productflow.image_tasks"
    )
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, next_check_at)"
        " SELECT 'image_session', id, clock_timestamp() FROM productflow.image_tasks"
    )
    rows.all("VACUUM ANALYZE")


THROUGH = {
    "find": ("image_tasks", "image_tasks_open"),
    "recheck": ("image_candidates", "image_candidates_pkey"),
    "repair": ("provider_effects", "provider_effects_owner"),
    "requeue": ("image_tasks", "image_tasks_pkey"),
    "lose": ("provider_effects", "provider_effects_owner"),
}


def test_statements_read_no_big_table_from_end_to_end(productflow: Database, rows: Rows) -> None:
    """The texts as loaded, prepared, with custom and with generic plans."""
    fill(rows)
    queries = domain_queries("pfsup.domains.image_session", schema="pfsup", productflow="productflow")
    said = {"domain": "image_session", "stale_s": 5400.0, "after_at": "-infinity", "after_id": "", "page": 104}
    row = {"id": "4800", "attempt_id": "a1", "status": "running", "silent": True, "run_id": None}
    said |= row | {"most": 26, "run_status": None, "run_alive": False, "reason": "why"}
    big = ("image_tasks", "image_candidates", "provider_effects", "async_dispatches", "recovery_ledger")
    for name, (table, index) in THROUGH.items():
        for mode in MODES:
            steps = plan(productflow, queries[name], said, mode=mode)
            assert sequential(steps, *big) == [], (name, mode)
            assert index in indexes(steps, table), (name, mode)
