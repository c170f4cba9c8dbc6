"""Workflow: silent nodes are judged by phase, runs sent out again or closed; the next run of a graph gets its turn."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import psycopg.errors
import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.gates import Gates
from support.recovery import domain
from support.rows import Row, Rows
from support.waiting import auntil

pytestmark = pytest.mark.usefixtures("productflow")

CALLED = ["provider_call", "result_received", "a phase of tomorrow"]


async def decided(database: Database, **section: Any) -> dict[Decision, int]:
    """What one look decided."""
    async with domain(database, "workflow", **section) as workflow:
        return dict((await workflow.run()).decisions)


async def lost(database: Database, rows: Rows, **section: Any) -> dict[Decision, int]:
    """What a second look decided, the takeover grace after the first."""
    async with domain(database, "workflow", **section) as workflow:
        await workflow.run()
        rows.awake()
        workflow.clock.pass_(workflow.looks.grace_s + 1)
        return dict((await workflow.run()).decisions)


def running(rows: Rows, *nodes: dict[str, Any], **columns: Any) -> tuple[str, list[str]]:
    """A running run and its nodes."""
    run = rows.workflow(**({"status": "running"} | columns))
    return run, [rows.node(run, **node) for node in nodes]


def statuses(rows: Rows, nodes: list[str]) -> list[str]:
    """What the nodes are."""
    return [rows.row("workflow_node_runs", node).status for node in nodes]


def status(rows: Rows, run: str) -> str:
    """What the run is."""
    return rows.row("workflow_runs", run).status


def audited(rows: Rows, run: str) -> list[Row]:
    """The audit of a run, oldest first."""
    return rows.all("SELECT * FROM pfsup.audit_log WHERE subject = %s ORDER BY id", f"workflow:{run}")


@pytest.mark.parametrize("phase", [None, "claimed", "prepared"])
async def test_silent_node_before_its_call_is_queued_again(productflow: Database, rows: Rows, phase: str | None):
    """Its intents are void: no call began. The run keeps its place in the graph and is sent out again."""
    run, (node,) = running(rows, {"status": "running", "phase": phase}, lease_expires_at="ago 2 hours")
    effect = rows.effect("workflow", node)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    was = rows.row("workflow_node_runs", node)
    assert (was.status, was.phase, was.attempt_id, was.started_at, was.progress_at) == (
        "queued",
        None,
        None,
        None,
        None,
    )
    assert rows.row("provider_effects", effect).state == "void"
    assert (status(rows, run), rows.row("workflow_runs", run).lease_expires_at) == ("running", None)
    assert rows.envelope(f"workflow:{run}").status == "pending"
    assert rows.envelope(f"workflow:{run}").payload == {"run_id": run}


@pytest.mark.parametrize("phase", CALLED)
async def test_silent_node_that_may_have_called_is_unknown_and_closes_a_run_without_work(
    productflow: Database, rows: Rows, phase: str
):
    run, nodes = running(rows, {"status": "running", "phase": phase}, {"status": "succeeded"}, {"status": "skipped"})
    effect = rows.effect("workflow", nodes[0])
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert statuses(rows, nodes) == ["unknown", "succeeded", "skipped"]
    assert rows.row("provider_effects", effect).state == "unknown"
    closed = rows.row("workflow_runs", run)
    assert (closed.status, closed.finished_at is not None) == ("unknown", True)
    assert phase in closed.error
    assert rows.envelopes(f"workflow:{run}") == [], "nothing is sent out for it"


async def test_silent_node_that_may_have_called_is_unknown_while_the_rest_goes_on(productflow: Database, rows: Rows):
    run, nodes = running(
        rows,
        {"status": "running", "phase": "provider_call"},
        {"status": "running", "phase": "claimed"},
        {"status": "queued"},
    )
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert statuses(rows, nodes) == ["unknown", "queued", "queued"]
    assert status(rows, run) == "running"
    assert rows.envelope(f"workflow:{run}").status == "pending"


@pytest.mark.parametrize("times", [{"started_at": None, "progress_at": None}, {"progress_at": None}])
async def test_running_node_with_null_times_counts_as_silent(productflow: Database, rows: Rows, times: dict[str, None]):
    _, nodes = running(rows, {"status": "running", "attempt_id": None, **times})
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert statuses(rows, nodes) == ["queued"]


async def test_node_whose_progress_is_null_is_as_old_as_its_start(productflow: Database, rows: Rows):
    _, nodes = running(rows, {"status": "running", "started_at": "ago 29 minutes", "progress_at": None})
    assert await decided(productflow) == {}
    assert statuses(rows, nodes) == ["running"]


@pytest.mark.parametrize(
    "nodes",
    [[], [{"status": "queued"}], [{"status": "succeeded"}], [{"status": "unknown"}, {"status": "failed"}]],
    ids=["none", "work left", "all finished", "all finished, one unknown"],
)
async def test_run_without_running_node_and_envelope_is_sent_out_again(
    productflow: Database, rows: Rows, nodes: list[dict[str, Any]]
):
    """Whether its work is left or only its end."""
    run, made = running(rows, *nodes, envelope="consumed")
    before = statuses(rows, made)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (status(rows, run), statuses(rows, made)) == ("running", before)
    assert rows.envelope(f"workflow:{run}").status == "pending"


async def test_node_that_is_not_silent_keeps_its_run(productflow: Database, rows: Rows):
    _, nodes = running(rows, {"status": "running", "progress_at": "ago 1 minute"}, {"status": "queued"})
    assert await decided(productflow) == {}
    assert statuses(rows, nodes) == ["running", "queued"]


async def test_only_the_silent_nodes_of_a_run_without_an_envelope_are_judged(productflow: Database, rows: Rows):
    fresh = {"status": "running", "phase": "claimed", "progress_at": "ago 1 minute"}
    _, nodes = running(rows, {"status": "running", "phase": "claimed"}, fresh)
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert statuses(rows, nodes) == ["queued", "running"]


async def test_live_lease_of_the_run_is_the_workers_whatever_its_age(productflow: Database, rows: Rows):
    _, nodes = running(rows, {"status": "running"}, lease_expires_at="ago -1 minute")
    assert await decided(productflow) == {}
    assert statuses(rows, nodes) == ["running"]


@pytest.mark.parametrize("envelope", ["pending", "held", "sent", "alive"])
async def test_run_with_an_envelope_at_work_is_looked_after_there(productflow: Database, rows: Rows, envelope: str):
    _, nodes = running(rows, {"status": "running"}, envelope=envelope)
    assert await decided(productflow) == {}
    assert statuses(rows, nodes) == ["running"]


async def test_lost_worker_is_believed_at_the_second_look_and_all_its_nodes_are_judged(
    productflow: Database, rows: Rows
):
    """Silence does not matter then: they were the nodes of a worker that is proved to be gone."""
    fresh = {"status": "running", "progress_at": "ago 1 minute"}
    run, nodes = running(rows, fresh | {"phase": "prepared"}, fresh | {"phase": "provider_call"}, envelope="lost")
    before = rows.envelope(f"workflow:{run}").id
    assert await decided(productflow) == {Decision.STILL_RUNNING: 1}
    rows.awake()
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    assert statuses(rows, nodes) == ["queued", "unknown"]
    assert (rows.envelope(f"workflow:{run}").id, rows.envelope(f"workflow:{run}").status) == (before, "pending")


async def test_lost_worker_whose_only_node_may_have_called_ends_run_and_envelope(productflow: Database, rows: Rows):
    run, nodes = running(rows, {"status": "running", "phase": "provider_call"}, envelope="lost")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert (status(rows, run), statuses(rows, nodes)) == ("unknown", ["unknown"])
    assert rows.envelope(f"workflow:{run}").status == "unknown"


async def test_effect_begun_in_the_envelopes_journal_makes_the_run_unknown(productflow: Database, rows: Rows):
    """Whatever the phases say."""
    run, nodes = running(rows, {"status": "running", "phase": "claimed"}, {"status": "queued"}, envelope="lost")
    effect = rows.effect("workflow", nodes[0])
    rows.all("UPDATE pfsup.async_dispatches SET effect = 'begun' WHERE delivery_key = %s", f"workflow:{run}")
    assert await lost(productflow, rows) == {Decision.OUTCOME_UNKNOWN: 1}
    assert (status(rows, run), statuses(rows, nodes)) == ("unknown", ["unknown", "queued"])
    assert rows.row("provider_effects", effect).state == "unknown"
    assert rows.envelope(f"workflow:{run}").status == "unknown"


@pytest.mark.parametrize(("envelope", "why"), [("dead", "the stream refused it"), ("unknown", "nobody knows")])
async def test_end_of_the_envelope_is_the_end_of_the_run(productflow: Database, rows: Rows, envelope: str, why: str):
    run, nodes = running(rows, {"status": "running", "phase": "claimed"}, {"status": "queued"}, envelope=envelope)
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1}
    assert (status(rows, run), statuses(rows, nodes)) == ("unknown", ["unknown", "queued"])
    assert why in rows.row("workflow_runs", run).error
    assert rows.envelope(f"workflow:{run}").status == envelope, "only a person resets it"


@pytest.mark.parametrize(
    ("nodes", "end"),
    [
        ([{"status": "running", "phase": "claimed"}, {"status": "queued"}], "failed"),
        ([{"status": "running", "phase": "claimed"}, {"status": "running", "phase": "provider_call"}], "unknown"),
        ([{"status": "queued"}, {"status": "unknown"}], "unknown"),
        ([], "failed"),
    ],
)
async def test_run_over_its_recoveries_is_failed_or_unknown_with_an_unproved_call(
    productflow: Database, rows: Rows, nodes: list[dict[str, Any]], end: str
):
    run, made = running(rows, *nodes)
    await decided(productflow, max_recoveries=0)
    assert status(rows, run) == end
    assert "running" not in statuses(rows, made)
    assert rows.envelopes(f"workflow:{run}") == []


async def test_recoveries_of_a_run_are_counted_in_the_ledger_until_it_fails(productflow: Database, rows: Rows):
    run, _ = running(rows, {"status": "queued"})
    async with domain(productflow, "workflow", max_recoveries=2) as workflow:
        for _ in range(3):
            rows.awake()
            await workflow.run()
            rows.all("UPDATE pfsup.async_dispatches SET status = 'cancelled', finished_at = clock_timestamp()")
    assert status(rows, run) == "failed"
    line = rows.ledger("workflow", run)
    assert line is not None
    assert (line.recoveries, line.last_decision) == (2, "give_up")
    assert [(entry.action, entry.before, entry.after) for entry in audited(rows, run)] == [
        ("redispatch", "running", "running"),
        ("redispatch", "running", "running"),
        ("give_up", "running", "failed"),
    ]


@pytest.mark.parametrize("state", ["applied", "unknown"])
async def test_node_whose_journal_knows_a_call_of_its_attempt_is_not_repeated(
    productflow: Database, rows: Rows, state: str
):
    """A phase that lags behind the journal proves nothing."""
    _, nodes = running(rows, {"status": "running", "phase": "prepared"}, {"status": "running", "phase": "prepared"})
    rows.effect("workflow", nodes[0], state=state)
    rows.effect("workflow", nodes[1], state=state, attempt_id="an older one")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert statuses(rows, nodes) == ["unknown", "queued"]


async def test_lease_that_lives_again_is_noted_and_left(productflow: Database, rows: Rows):
    """Between the find and the re-read its worker came back, or finished."""
    run, nodes = running(rows, {"status": "running"})
    done, _ = running(rows, {"status": "queued"})
    gates = Gates()
    gates.hold("recheck_run")
    async with domain(productflow, "workflow", points=gates) as workflow:
        cycle = asyncio.create_task(workflow.run())
        await gates.arrival("recheck_run")
        rows.all(
            "UPDATE productflow.workflow_runs SET lease_expires_at = clock_timestamp() + interval '1 minute'"
            " WHERE id = %s",
            run,
        )
        rows.all("UPDATE productflow.workflow_runs SET status = 'succeeded' WHERE id = %s", done)
        gates.open("recheck_run")
        assert (await cycle).decisions == {Decision.MOVED_ON: 2}
    assert statuses(rows, nodes) == ["running"]
    line = rows.ledger("workflow", run)
    assert line is not None
    assert (line.last_decision, line.last_reason) == ("moved_on", "its lease is alive again")
    assert rows.ledger("workflow", done) is None


async def test_nodes_without_a_run_are_never_found(productflow: Database, rows: Rows):
    node = rows.node("gone", status="running")
    assert await decided(productflow) == {}
    assert statuses(rows, [node]) == ["running"]


@pytest.mark.parametrize("table", ["workflow_node_runs", "provider_effects"])
async def test_node_or_effect_locked_elsewhere_is_not_waited_for(productflow: Database, rows: Rows, table: str):
    """A writer that locks them before the run cannot meet recovery in a deadlock."""
    run, (node,) = running(rows, {"status": "running"})
    locked = {"workflow_node_runs": node, "provider_effects": rows.effect("workflow", node)}[table]
    with psycopg.connect(productflow.url) as writer:
        writer.execute(f"SELECT FROM productflow.{table} WHERE id = %s FOR UPDATE".encode(), [locked])
        async with domain(productflow, "workflow") as workflow:
            report = await workflow.run()
            assert (report.locked, report.examined) == (1, 0)
            writer.execute("UPDATE productflow.workflow_runs SET progress_at = clock_timestamp() WHERE id = %s", [run])
            writer.commit()
            assert (await workflow.run()).decisions == {Decision.REDISPATCH: 1}


async def test_oldest_queued_run_of_a_free_graph_gets_its_turn(productflow: Database, rows: Rows):
    """It is running from now on, so that the graph is taken, and sent out; the others wait."""
    later = rows.workflow(graph_id="g", created_at="ago 1 hour")
    oldest = rows.workflow(graph_id="g", created_at="ago 2 hours")
    assert await decided(productflow) == {Decision.REDISPATCH: 1}
    assert (status(rows, oldest), status(rows, later)) == ("running", "queued")
    assert rows.envelope(f"workflow:{oldest}").payload == {"run_id": oldest}
    assert rows.envelopes(f"workflow:{later}") == []
    assert [(entry.action, entry.before, entry.after) for entry in audited(rows, oldest)] == [
        ("redispatch", "queued", "running")
    ]
    line = rows.ledger("workflow", oldest)
    assert line is not None
    assert line.recoveries == 0, "its turn costs nothing"


async def test_queued_run_of_a_taken_graph_waits_without_a_line_in_the_ledger(productflow: Database, rows: Rows):
    rows.workflow(graph_id="g", status="running", lease_expires_at="ago -1 hour")
    waits = rows.workflow(graph_id="g")
    assert await decided(productflow) == {}
    assert rows.ledger("workflow", waits) is None


@pytest.mark.parametrize("envelope", ["pending", "held", "sent", "alive", "dead", "unknown"])
async def test_queued_run_that_the_application_staged_keeps_its_turn(productflow: Database, rows: Rows, envelope: str):
    """A dead envelope is a person's; the runs behind it wait with it."""
    staged = rows.workflow(graph_id="g", envelope=envelope)
    behind = rows.workflow(graph_id="g", created_at="ago 1 hour")
    assert await decided(productflow) == {}
    assert (status(rows, staged), status(rows, behind)) == ("queued", "queued")


async def test_queued_run_whose_worker_died_before_it_began_is_sent_out_again(productflow: Database, rows: Rows):
    run = rows.workflow(envelope="lost")
    assert await lost(productflow, rows) == {Decision.REDISPATCH: 1}
    assert (status(rows, run), rows.envelope(f"workflow:{run}").status) == ("running", "pending")


async def test_turns_use_what_is_left_of_the_batch(productflow: Database, rows: Rows):
    for _ in range(2):
        running(rows, {"status": "queued"})
        rows.workflow()
    async with domain(productflow, "workflow", batch_size=3) as workflow:
        report = await workflow.run()
    assert (report.examined, report.has_more) == (3, True)
    assert rows.one("SELECT count(*) AS n FROM productflow.workflow_runs WHERE status = 'queued'").n == 1


async def test_turn_follows_in_the_cycle_that_closes_the_run_before(productflow: Database, rows: Rows):
    running(rows, {"status": "running", "phase": "provider_call"}, graph_id="g")
    follower = rows.workflow(graph_id="g")
    assert await decided(productflow) == {Decision.OUTCOME_UNKNOWN: 1, Decision.REDISPATCH: 1}
    assert status(rows, follower) == "running"


def test_graph_has_one_running_run(rows: Rows):
    rows.workflow(graph_id="g", status="running")
    with pytest.raises(psycopg.errors.UniqueViolation, match="workflow_runs_one_running"):
        rows.workflow(graph_id="g", status="running")


async def test_two_supervisors_give_one_turn(productflow: Database, rows: Rows):
    """While one is about to promote the oldest, the other neither waits nor takes the next."""
    oldest, later = (rows.workflow(graph_id="g", created_at=f"ago {n} hours") for n in (2, 1))
    gates = Gates()
    gates.hold("promote")
    async with domain(productflow, "workflow", points=gates) as one, domain(productflow, "workflow") as two:
        cycle = asyncio.create_task(one.run())
        await gates.arrival("promote")
        rows.awake()
        assert (await two.run()).decisions == {}
        gates.open("promote")
        assert (await cycle).decisions == {Decision.REDISPATCH: 1}
        rows.awake()
        assert (await two.run()).decisions == {}
    assert (status(rows, oldest), status(rows, later)) == ("running", "queued")
    assert len(rows.envelopes(f"workflow:{oldest}")) == 1


@pytest.mark.parametrize("committed", [True, False])
async def test_turn_that_loses_the_race_has_moved_on_and_leaves_no_envelope(
    productflow: Database, rows: Rows, committed: bool
):
    """A worker began another run of the graph: it has committed, or does so while the promotion waits for its index."""
    ours = rows.workflow(graph_id="g", created_at="ago 2 hours")
    theirs = rows.workflow(graph_id="g", created_at="ago 1 hour", envelope="alive")
    gates = Gates()
    gates.hold("promote")
    async with domain(productflow, "workflow", points=gates) as workflow:
        cycle = asyncio.create_task(workflow.run())
        await gates.arrival("promote")
        with psycopg.connect(productflow.url) as worker:
            worker.execute("UPDATE productflow.workflow_runs SET status = 'running' WHERE id = %s", [theirs])
            if committed:
                worker.commit()
            gates.open("promote")
            if not committed:
                await auntil(lambda: rows.one("SELECT count(*) AS n FROM pg_locks WHERE NOT granted").n)
            worker.commit()
            report = await cycle
    assert (report.decisions, report.errors, report.staged) == ({Decision.MOVED_ON: 1}, [], 0)
    assert (status(rows, ours), status(rows, theirs)) == ("queued", "running")
    assert rows.envelopes(f"workflow:{ours}") == []
    line = rows.ledger("workflow", ours)
    assert line is not None
    assert line.last_decision == "moved_on"
    assert audited(rows, ours) == []


async def test_observing_says_what_would_be_done_and_does_nothing(productflow: Database, rows: Rows):
    run, nodes = running(rows, {"status": "running"})
    waits = rows.workflow()
    assert await decided(productflow, mode="observe") == {Decision.REDISPATCH: 2}
    assert (status(rows, run), statuses(rows, nodes), status(rows, waits)) == ("running", ["running"], "queued")
    assert rows.ledger("workflow", run) is None
