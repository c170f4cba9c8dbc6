"""Agent: a turn whose owner is gone is released, ended unknown or ended as its journal says; no turn is forgotten."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from pfsup.domains.decisions import Decision
from pfsup.shared.points import Points
from support.database import Database
from support.recovery import domain
from support.rows import Row, Rows
from support.waiting import auntil

pytestmark = pytest.mark.usefixtures("productflow")

CAN_TAKE = "SELECT id FROM productflow.agent_turns_needing_worker WHERE id = %s"


class Stops(Points):
    """Ends the cycle at its `at`-th named point, as a killed process would: nothing of the open transaction stays."""

    def __init__(self, at: int) -> None:
        self.left = at

    async def reach(self, name: str, **facts: object) -> None:
        self.left -= 1
        if not self.left:
            raise asyncio.CancelledError


async def decided(database: Database, **section: Any) -> dict[Decision, int]:
    """What one cycle decided."""
    async with domain(database, "agent", **section) as agent:
        return dict((await agent.run()).decisions)


async def lost(database: Database, rows: Rows, **section: Any) -> dict[Decision, int]:
    """What a second look decided, the takeover grace after the first."""
    async with domain(database, "agent", **section) as agent:
        assert dict((await agent.run()).decisions) == {Decision.STILL_RUNNING: 1}
        rows.awake()
        agent.clock.pass_(agent.looks.grace_s + 1)
        return dict((await agent.run()).decisions)


def turn_of(rows: Rows, turn: str) -> Row:
    """The turn as it stands."""
    return rows.row("agent_turns", turn)


def journal(rows: Rows, turn: str) -> list[str]:
    """The kinds of a turn's events, in order."""
    return [row.kind for row in rows.all(
        "SELECT kind FROM productflow.agent_turn_events WHERE turn_id = %s ORDER BY seq", turn)]  # fmt: skip


def free(rows: Rows, turn: str) -> tuple[str, int]:
    """The status and fencing token of a turn that nobody owns."""
    was = turn_of(rows, turn)
    assert (was.owner, was.lease_expires_at) == (None, None)
    return was.status, was.fencing_token


def staged(rows: Rows, turn: str) -> list[str]:
    """The statuses of a turn's envelopes."""
    return [row.status for row in rows.envelopes(f"agent:{turn}")]


# Phase 1: owned turns whose lease ended.


async def test_claimed_turn_of_a_lost_owner_is_released_and_sent_out_at_the_second_look(
    productflow: Database, rows: Rows
) -> None:
    turn = rows.turn(owner="w1", status="running", phase="claimed", envelope="lost")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    assert free(rows, turn) == ("queued", 6)
    assert staged(rows, turn) == ["pending"]
    assert (turn_of(rows, turn).phase, rows.ledger("agent", turn).recoveries) == (None, 1)  # type: ignore[union-attr]
    assert rows.all(CAN_TAKE, turn), "the worker that gets the envelope may take the turn"


async def test_released_turn_is_one_that_phase_three_leaves_alone(productflow: Database, rows: Rows) -> None:
    """Its envelope went out in the same transaction: the cycle's third phase finds nothing to do."""
    turn = rows.turn(owner="w1", status="queued")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (free(rows, turn), staged(rows, turn)) == (("queued", 6), ["pending"])


async def test_wish_to_cancel_survives_the_release(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(owner="w1", status="cancel_requested", phase="claimed")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert free(rows, turn) == ("cancel_requested", 6)


@pytest.mark.parametrize("phase", [None, "provider_call", "of another version"])
async def test_turn_that_may_have_called_ends_unknown_with_its_task_and_envelope(
    productflow: Database, rows: Rows, phase: str | None
) -> None:
    task = rows.agent_task(status="running")
    turn = rows.turn(owner="w1", status="running", phase=phase, task_id=task, envelope="lost")
    pending, applied = rows.effect("agent", turn), rows.effect("agent", turn, state="applied")
    rows.event(turn, "begun")
    rows.event(turn, "effect_begun", effect=applied)
    rows.event(turn, "effect_done", effect=applied)
    rows.event(turn, "effect_begun", effect="e7")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert free(rows, turn) == ("unknown", 6)
    kinds = ["begun", "effect_begun", "effect_done", "effect_begun", "interrupted", "interrupted", "turn_unknown"]
    assert journal(rows, turn) == kinds
    told = rows.all("SELECT body FROM productflow.agent_turn_events WHERE kind = 'interrupted' ORDER BY seq")
    assert sorted(row.body["effect"] for row in told) == sorted([pending, "e7"])
    assert [rows.row("provider_effects", e).state for e in (pending, applied)] == ["unknown", "applied"]
    ended = rows.row("agent_tasks", task)
    assert (ended.status, ended.finished_at is not None, ended.error) == ("unknown", True, turn_of(rows, turn).error)
    assert staged(rows, turn) == ["unknown"]


async def test_late_worker_is_refused_by_the_token(productflow: Database, rows: Rows) -> None:
    """Whatever recovery decided: every write of the worker names the token it had."""
    turns = [
        rows.turn(owner="w1", status="running", phase=phase) for phase in ("claimed", "provider_call")
    ] + [rows.turn(owner="w1", status="requires_input")]  # fmt: skip
    await decided(productflow)
    with psycopg.connect(productflow.worker_url, autocommit=True) as late:
        written = late.execute(
            "UPDATE productflow.agent_turns SET status = 'succeeded' WHERE id = ANY (%s) AND fencing_token = 5", [turns]
        )
        assert written.rowcount == 0
    assert [turn_of(rows, turn).status for turn in turns] == ["queued", "unknown", "requires_input"]


async def test_second_run_writes_no_second_end(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(owner="w1", status="running", phase="provider_call")
    async with domain(productflow, "agent") as agent:
        for _ in range(2):
            await agent.run()
            rows.awake()
    assert (journal(rows, turn), free(rows, turn)) == (["turn_unknown"], ("unknown", 6))


async def test_second_run_after_the_row_was_put_back_projects_the_first_end(productflow: Database, rows: Rows) -> None:
    """A turn that looks as before, with the end in its journal: as after a row restored without its events."""
    turn = rows.turn(owner="w1", status="running", phase="provider_call")
    await decided(productflow)
    rows.awake()
    again = "UPDATE productflow.agent_turns SET status = 'running', owner = 'w2', lease_expires_at = now(),"
    rows.all(f"{again} finished_at = NULL WHERE id = %s", turn)
    assert await decided(productflow) == {Decision.MOVED_ON: 1}
    assert (journal(rows, turn), free(rows, turn)) == (["turn_unknown"], ("unknown", 7))


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "unknown"])
async def test_end_in_the_journal_is_written_onto_turn_and_task(productflow: Database, rows: Rows, end: str) -> None:
    task = rows.agent_task(status="running")
    turn = rows.turn(owner="w1", status="running", phase="provider_call", task_id=task, envelope="lost")
    rows.event(turn, f"turn_{end}")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    assert (free(rows, turn), journal(rows, turn)) == ((end, 6), [f"turn_{end}"])
    assert rows.row("agent_tasks", task).status == end
    assert staged(rows, turn) == ["pending"], "for a worker to settle"
    assert not rows.all(CAN_TAKE, turn), "it finds nothing to do"


async def test_end_in_the_journal_beside_an_open_effect_leaves_the_envelope_to_a_person(
    productflow: Database, rows: Rows
) -> None:
    turn = rows.turn(owner="w1", status="running", envelope="lost")
    effect = rows.effect("agent", turn)
    rows.event(turn, "turn_succeeded")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert (free(rows, turn)[0], journal(rows, turn)) == ("succeeded", ["turn_succeeded"])
    assert (rows.row("provider_effects", effect).state, staged(rows, turn)) == ("unknown", ["unknown"])


@pytest.mark.parametrize("status", ["requires_input", "awaiting_confirmation"])
async def test_turn_that_waits_for_a_person_only_loses_the_lease(
    productflow: Database, rows: Rows, status: str
) -> None:
    turn = rows.turn(owner="w1", status=status, phase="asked")
    rows.event(turn, "question")
    assert await decided(productflow) == {Decision.MOVED_ON: 1}
    assert (free(rows, turn), journal(rows, turn), staged(rows, turn)) == ((status, 6), ["question"], [])


async def test_answer_after_the_lease_was_collected_is_sent_out_in_the_next_cycle(
    productflow: Database, rows: Rows
) -> None:
    turn = rows.turn(owner="w1", status="requires_input")
    await decided(productflow)
    rows.all("UPDATE productflow.agent_turns SET answer = '{}' WHERE id = %s", turn)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (free(rows, turn)[0], staged(rows, turn)) == ("requires_input", ["pending"])


@pytest.mark.parametrize("columns", [{"envelope": "alive"}, {"lease_expires_at": "ago -1 minute"}])
async def test_turn_under_a_live_lease_is_left_alone(
    productflow: Database, rows: Rows, columns: dict[str, str]
) -> None:
    turn = rows.turn(owner="w1", status="running", phase="provider_call", **columns)
    assert await decided(productflow) == {}
    assert turn_of(rows, turn).fencing_token == 5


async def test_owner_without_a_lease_counts_as_gone(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(owner="w1", status="running", phase="claimed", lease_expires_at=None)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert free(rows, turn) == ("queued", 6)


async def test_owner_left_on_a_turn_that_is_over_is_taken_away(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(owner="w1", status="succeeded")
    assert await decided(productflow) == {Decision.MOVED_ON: 1}
    assert free(rows, turn) == ("succeeded", 6)
    assert await decided(productflow) == {}


async def test_turn_whose_parents_are_gone_is_judged_like_any_other(productflow: Database, rows: Rows) -> None:
    ended = rows.turn(owner="w1", status="running", task_id="gone", conversation_id="gone")
    queued = rows.turn(owner="w1", task_id="gone", conversation_id="gone")
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1, Decision.REDISPATCH: 1}
    assert (free(rows, ended)[0], free(rows, queued)[0]) == ("unknown", "queued")


async def test_event_that_names_no_effect_and_a_void_one(productflow: Database, rows: Rows) -> None:
    """Begun and nothing more is unproved; an effect that is void never began."""
    unnamed = rows.turn(owner="w1", status="running", phase="claimed")
    void = rows.turn(owner="w1", status="running", phase="claimed")
    rows.event(unnamed, "effect_begun")
    rows.event(void, "effect_begun", effect=rows.effect("agent", void, state="void"))
    await decided(productflow)
    assert (free(rows, unnamed)[0], free(rows, void)[0]) == ("unknown", "queued")


@pytest.mark.parametrize(("envelope", "decision"), [("dead", Decision.GIVE_UP), ("unknown", Decision.OUTCOME_UNKNOWN)])
async def test_ended_envelope_ends_its_turn_as_unknown(
    productflow: Database, rows: Rows, envelope: str, decision: Decision
) -> None:
    turn = rows.turn(owner="w1", status="running", phase="claimed", envelope=envelope)
    assert await decided(productflow) == {decision: 1}
    assert (free(rows, turn)[0], staged(rows, turn)) == ("unknown", [envelope])
    assert rows.envelope(f"agent:{turn}").last_error in turn_of(rows, turn).error


async def test_turn_that_kills_its_worker_every_time_is_given_up(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(owner="w1", status="running", phase="claimed")
    async with domain(productflow, "agent", max_recoveries=3) as agent:
        for _ in range(4):
            await agent.run()
            rows.awake()
            rows.all("DELETE FROM pfsup.async_dispatches")
            rows.all("UPDATE productflow.agent_turns SET owner = 'w1', phase = 'claimed' WHERE status = 'queued'")
    assert (free(rows, turn), journal(rows, turn)) == (("unknown", 9), ["turn_unknown"])


# Phase 2: queued tasks without a first turn.


async def test_queued_task_gets_its_first_turn_and_an_envelope(productflow: Database, rows: Rows) -> None:
    task = rows.agent_task(request={"say": "hello"})
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    turn = rows.one("SELECT * FROM productflow.agent_turns")
    assert (turn.key, turn.task_id, turn.status) == (f"initial:c1:{task}", task, "queued")
    assert turn.request == {"say": "hello"}
    assert rows.row("agent_tasks", task).first_turn_id == turn.id
    assert rows.envelope(f"agent:{turn.id}").payload == {"turn_id": turn.id}
    assert rows.envelope(f"agent:{turn.id}").aggregate_id == turn.id
    assert rows.ledger("agent", f"task:{task}") is not None
    assert await decided(productflow) == {}


async def test_two_domains_at_once_make_one_turn_and_one_envelope_a_task(productflow: Database, rows: Rows) -> None:
    tasks = [rows.agent_task() for _ in range(20)]
    async with domain(productflow, "agent") as one, domain(productflow, "agent") as other:
        await asyncio.gather(one.run(), other.run())
        rows.awake()
        await asyncio.gather(one.run(), other.run())
    turns = rows.all("SELECT id, task_id FROM productflow.agent_turns")
    assert sorted(turn.task_id for turn in turns) == sorted(tasks)
    assert [staged(rows, turn.id) for turn in turns] == [["pending"]] * 20


async def test_task_and_turn_of_one_number_have_a_past_of_their_own(productflow: Database, rows: Rows) -> None:
    rows.agent_task(id="7")
    rows.turn(id="7", owner="w1", status="running", phase="claimed")
    assert await decided(productflow) == {Decision.REDISPATCH: 2}
    assert rows.ledger("agent", "7").recoveries == 1  # type: ignore[union-attr]


async def test_task_whose_conversation_is_gone_is_unknown(productflow: Database, rows: Rows) -> None:
    task = rows.agent_task(talks=False)
    assert await decided(productflow) == {Decision.GIVE_UP: 1}
    ended = rows.row("agent_tasks", task)
    assert (ended.status, ended.error, ended.finished_at is not None) == ("unknown", "its conversation is gone", True)
    assert rows.all("SELECT id FROM productflow.agent_turns") == []


async def test_task_whose_first_turn_is_there_is_no_candidate(productflow: Database, rows: Rows) -> None:
    task = rows.agent_task()
    rows.turn(key=f"initial:c1:{task}", task_id=task, envelope="sent")
    assert await decided(productflow) == {}


async def test_application_that_makes_the_turn_at_the_same_time_wins(productflow: Database, rows: Rows) -> None:
    """It inserted the turn and then wants the task that recovery holds: recovery gives way, nobody is a victim."""
    task = rows.agent_task()
    insert = "INSERT INTO productflow.agent_turns (conversation_id, task_id, key) VALUES ('c1', %s, %s)"
    update = "UPDATE productflow.agent_tasks SET status = 'running' WHERE id = %s"
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO productflow%'"
    async with (
        await psycopg.AsyncConnection.connect(productflow.app_url) as app,
        domain(productflow, "agent") as agent,
    ):
        await app.execute(insert.encode(), [task, f"initial:c1:{task}"])
        cycle = asyncio.create_task(agent.run())
        with productflow.superuser() as look:
            await auntil(lambda: bool(look.execute(waits.encode()).fetchall()), what="recovery waits")
        await app.execute(update.encode(), [task])
        await app.commit()
        report = await cycle
    assert [type(error) for error in report.errors] == [psycopg.errors.LockNotAvailable]
    assert rows.row("agent_tasks", task).status == "running"


# Phase 3: open turns that nobody owns.


@pytest.mark.parametrize(
    "columns",
    [{"status": s} for s in ("queued", "running", "cancel_requested")] + [{"status": "requires_input", "answer": {}}],
    ids=lambda columns: str(columns["status"]),
)
async def test_turn_that_needs_a_worker_gets_an_envelope(
    productflow: Database, rows: Rows, columns: dict[str, Any]
) -> None:
    turn = rows.turn(**columns)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (free(rows, turn), staged(rows, turn)) == ((columns["status"], 0), ["pending"])
    assert rows.all(CAN_TAKE, turn)


async def test_turn_whose_worker_died_before_it_took_it_is_sent_out_again(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(envelope="lost")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    assert staged(rows, turn) == ["pending"]
    assert rows.ledger("agent", turn).recoveries == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("envelope", ["pending", "held", "sent", "alive", "dead", "unknown"])
async def test_queued_turn_with_an_envelope_is_no_candidate(productflow: Database, rows: Rows, envelope: str) -> None:
    turn = rows.turn(envelope=envelope)
    assert await decided(productflow) == {}
    assert free(rows, turn) == ("queued", 0)


async def test_turn_over_the_cap_is_unknown_and_not_staged(productflow: Database, rows: Rows) -> None:
    turn = rows.turn()
    rows.all(
        "INSERT INTO pfsup.recovery_ledger (domain, candidate_id, recoveries, next_check_at)"
        " VALUES ('agent', %s, 3, '-infinity')",
        turn,
    )
    assert await decided(productflow, max_recoveries=3) == {Decision.GIVE_UP: 1}
    assert (free(rows, turn), staged(rows, turn), journal(rows, turn)) == (("unknown", 1), [], ["turn_unknown"])


@pytest.mark.parametrize("envelope", [None, "dead"])
async def test_unbound_turn_whose_journal_has_the_end_is_over(
    productflow: Database, rows: Rows, envelope: str | None
) -> None:
    turn = rows.turn(envelope=envelope)
    rows.event(turn, "turn_failed")
    assert await decided(productflow) == {Decision.MOVED_ON: 1}
    assert (free(rows, turn)[0], journal(rows, turn)) == ("failed", ["turn_failed"])


async def test_unbound_turn_with_an_open_effect_is_unknown(productflow: Database, rows: Rows) -> None:
    turn = rows.turn(status="running", phase="provider_call")
    rows.effect("agent", turn)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert (free(rows, turn), staged(rows, turn)) == (("unknown", 1), [])
    assert journal(rows, turn) == ["interrupted", "turn_unknown"]


async def test_recovery_stages_exactly_the_turns_that_a_worker_may_take(productflow: Database, rows: Rows) -> None:
    """Every status, owner, answer, end in the journal and open effect: the finder and the view say the same."""
    turns: list[str] = []
    for status in ("queued", "running", "cancel_requested", "requires_input", "awaiting_confirmation", "succeeded"):
        for owner in (None, "w1"):
            for answer in (None, {"say": "yes"}):
                for mark in ("", "turn_failed", "effect_begun"):
                    alive = {"owner": owner, "lease_expires_at": "ago -1 hour"} if owner else {}
                    turns.append(rows.turn(status=status, answer=answer, **alive))
                    if mark:
                        rows.event(turns[-1], mark)
    takeable = {row.id for row in rows.all("SELECT id FROM productflow.agent_turns_needing_worker")}
    async with domain(productflow, "agent", batch_size=100) as agent:
        report = await agent.run()
    assert report.errors == []
    assert {turn for turn in turns if staged(rows, turn)} == takeable
    assert {row.id for row in rows.all("SELECT id FROM productflow.agent_turns_needing_worker")} == takeable


async def test_each_phase_has_a_batch_of_its_own(productflow: Database, rows: Rows) -> None:
    for _ in range(3):
        rows.turn(owner="w1", status="running")
        rows.agent_task()
        rows.turn()
    async with domain(productflow, "agent", batch_size=2) as agent:
        report = await agent.run()
    assert report.examined == 6
    assert report.has_more


async def test_locked_turn_is_passed_over_and_its_neighbour_is_not(productflow: Database, rows: Rows) -> None:
    held, other = (rows.turn(owner="w1", status="running", phase="claimed") for _ in range(2))
    with psycopg.connect(productflow.worker_url) as worker:
        worker.execute("SELECT FROM productflow.agent_turns WHERE id = %s FOR UPDATE", [held])
        assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (turn_of(rows, held).owner, turn_of(rows, other).owner) == ("w1", None)


async def test_writer_that_locks_the_task_first_is_never_in_a_deadlock(productflow: Database, rows: Rows) -> None:
    """The reverse order, against the documented one: recovery holds the turn for a moment, but waits for nothing."""
    task = rows.agent_task(status="running")
    turn = rows.turn(owner="w1", status="running", phase="provider_call", task_id=task)
    async with await psycopg.AsyncConnection.connect(productflow.app_url) as app, domain(productflow, "agent") as agent:
        for _ in range(20):
            await app.execute("SELECT id FROM productflow.agent_tasks WHERE id = %s FOR UPDATE", [task])
            cycle = asyncio.create_task(agent.run())
            await app.execute("SELECT id FROM productflow.agent_turns WHERE id = %s FOR UPDATE", [turn])
            report = await cycle
            assert (report.errors, report.examined) == ([], 0)
            await app.rollback()
            rows.awake()
        assert (await agent.run()).decisions == {Decision.OUTCOME_UNKNOWN: 1}
    assert (free(rows, turn)[0], rows.row("agent_tasks", task).status) == ("unknown", "unknown")


async def test_locked_effect_is_an_error_of_its_turn_alone(productflow: Database, rows: Rows) -> None:
    held, other = (rows.turn(owner="w1", status="running") for _ in range(2))
    effect = rows.effect("agent", held)
    with psycopg.connect(productflow.worker_url) as worker:
        worker.execute("SELECT id FROM productflow.provider_effects WHERE id = %s FOR UPDATE", [effect])
        async with domain(productflow, "agent") as agent:
            report = await agent.run()
    assert [type(error) for error in report.errors] == [psycopg.errors.LockNotAvailable]
    assert (turn_of(rows, held).owner, free(rows, other)[0]) == ("w1", "unknown")


async def test_cycle_stopped_between_any_two_statements_is_made_up_for(productflow: Database, rows: Rows) -> None:
    """Unknown turns have one end and one interruption, tasks one turn, and every turn to be run one envelope."""
    stops, at = Stops(0), 0
    async with domain(productflow, "agent", points=stops) as agent:
        while stops.left <= 0:
            ended = rows.turn(owner="w1", status="running", phase="provider_call", envelope="consumed")
            rows.effect("agent", ended)
            claimed, task = rows.turn(owner="w1", status="running", phase="claimed"), rows.agent_task()
            stops.left = at = at + 1
            with suppress(asyncio.CancelledError):
                await agent.run()
            if stops.left <= 0:  # it was stopped: the next process
                rows.awake()
                await agent.run()
            first = rows.one("SELECT id FROM productflow.agent_turns WHERE task_id = %s", task).id
            assert journal(rows, ended) == ["interrupted", "turn_unknown"], at
            assert (free(rows, ended), staged(rows, ended)) == (("unknown", 6), ["consumed"]), at
            assert (free(rows, claimed), staged(rows, claimed)) == (("queued", 6), ["pending"]), at
            assert staged(rows, first) == ["pending"], at
    assert at > 20


async def test_observer_says_what_it_would_do_and_writes_nothing(productflow: Database, rows: Rows) -> None:
    rows.turn(owner="w1", status="running")
    rows.agent_task()
    rows.turn()
    found = await decided(productflow, mode="observe")
    assert found == {Decision.OUTCOME_UNKNOWN: 1, Decision.REDISPATCH: 2}
    assert rows.all("SELECT id FROM pfsup.async_dispatches") == []
    assert rows.all("SELECT seq FROM productflow.agent_turn_events") == []
    assert len(rows.all("SELECT id FROM productflow.agent_turns")) == 2
