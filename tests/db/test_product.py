"""The product's functions: what they take, what they leave alone, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import psycopg
import pytest
from support.crash import Scene, crash_scene
from support.crash_workers import serve
from support.gates import Gates
from support.servers import PgServer, RedisServer
from support.waiting import auntil


@pytest.fixture(scope="module")
def stage(pg_server: PgServer, redis_server: RedisServer) -> Generator[Scene]:
    """One database and one worker for all of this file."""
    with crash_scene(pg_server, redis_server) as scene:
        yield scene


@pytest.fixture
def scene(stage: Scene) -> Scene:
    """Nothing in it yet."""
    stage.wipe()
    return stage


def envelope(scene: Scene, key: str) -> str:
    """The status of the last envelope of a key."""
    return str(scene.rows.envelopes(key)[-1].status)


def column(scene: Scene, query: str) -> list[Any]:
    """The first column of what a query answers."""
    return [row[0] for row in scene.rows.all(query)]


def test_row_and_envelope_are_of_one_transaction(scene: Scene):
    with scene.app.conn.transaction() as outer:
        scene.app.ask_delivery()
        scene.app.ask_edit({"crop": 1})
        scene.app.ask_images(2)
        scene.app.ask_run("g", [("a", True)])
        scene.app.ask_agent("c")
        raise psycopg.Rollback(outer)
    assert (scene.open_rows(), column(scene, "SELECT id FROM pfsup.async_dispatches")) == ([], [])


def test_edit_whose_message_was_written_for_another_request_is_refused_and_stays_queued(scene: Scene):
    edit = scene.app.ask_edit({"crop": 1})
    scene.rows.all("UPDATE productflow.local_edit_tasks SET request_hash = 'another'")
    scene.work_on()
    row = scene.rows.row("local_edit_tasks", edit)
    assert (row.status, row.attempt_id, envelope(scene, f"local_edit:{edit}")) == ("queued", None, "rejected")
    assert not scene.calls()


def test_edit_that_was_sent_out_again_with_its_own_request_is_done(scene: Scene):
    edit = scene.app.ask_edit({"crop": 1})
    scene.rows.all("UPDATE productflow.local_edit_tasks SET request_hash = 'another'")
    scene.work_on()
    scene.converge("local_edit")
    assert scene.end_of("local_edit", edit) == "succeeded"


def test_edit_that_may_have_called_ends_unknown_and_does_not_call(scene: Scene):
    edit = scene.app.ask_edit({"crop": 1})
    scene.rows.all("UPDATE productflow.local_edit_tasks SET status = 'running', phase = 'provider_pending'")
    scene.work_on()
    assert envelope(scene, f"local_edit:{edit}") == "unknown"
    scene.converge("local_edit")
    assert (scene.end_of("local_edit", edit), scene.calls()) == ("unknown", {})


def test_session_makes_the_images_that_are_missing_and_no_other(scene: Scene):
    session = scene.app.ask_images(4)
    scene.rows.images(session, 0, 2)
    scene.work_on()
    assert scene.calls() == {(session, 1): 1, (session, 3): 1}
    stored = column(scene, "SELECT candidate_index FROM productflow.image_candidates ORDER BY 1")
    assert (stored, scene.end_of("image_session", session)) == ([0, 1, 2, 3], "succeeded")


def test_session_with_every_image_stored_only_ends(scene: Scene):
    session = scene.app.ask_images(2)
    scene.rows.images(session, 0, 1)
    scene.work_on()
    assert (scene.end_of("image_session", session), scene.calls()) == ("succeeded", {})


def test_session_in_which_an_image_was_being_made_ends_unknown_and_does_not_call(scene: Scene):
    session = scene.app.ask_images(2)
    scene.rows.all(
        "UPDATE productflow.image_tasks SET status = 'running', phase = 'running', active_candidate_index = 0"
    )
    scene.work_on()
    assert (envelope(scene, f"image_session:{session}"), scene.calls()) == ("unknown", {})


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_row_that_is_over_is_left_alone_and_its_message_ended(scene: Scene, end: str):
    job = scene.app.ask_delivery()
    scene.rows.all(f"UPDATE productflow.delivery_jobs SET status = '{end}'")
    scene.work_on()
    assert (scene.end_of("delivery", job), envelope(scene, f"delivery:{job}")) == (end, "consumed")


def test_delivery_whose_run_failed_is_taken_again_by_the_next_run_of_its_envelope(scene: Scene):
    job = scene.app.ask_delivery()
    scene.rows.all("UPDATE productflow.delivery_jobs SET status = 'running', attempt_id = 'earlier'")
    scene.work_on()
    assert scene.end_of("delivery", job) == "succeeded"


def test_second_run_of_a_graph_waits_without_an_envelope_until_recovery_gives_it_its_turn(scene: Scene):
    first = scene.app.ask_run("g", [("a", True)])
    second = scene.app.ask_run("g", [("a", True)])
    assert [row.aggregate_id for row in scene.rows.all("SELECT aggregate_id FROM pfsup.async_dispatches")] == [first]
    scene.work_on()
    assert (scene.end_of("workflow", first), scene.end_of("workflow", second)) == ("succeeded", "queued")
    scene.converge("workflow")
    assert scene.end_of("workflow", second) == "succeeded"


def test_run_of_a_graph_that_has_a_running_one_is_only_settled(scene: Scene):
    run = scene.app.ask_run("g", [("a", True)])
    scene.rows.workflow(graph_id="g", status="running")
    scene.work_on()
    assert (scene.end_of("workflow", run), envelope(scene, f"workflow:{run}")) == ("queued", "consumed")


@pytest.mark.parametrize(("node", "end"), [("unknown", "unknown"), ("failed", "failed"), ("skipped", "succeeded")])
def test_run_ends_as_its_nodes_ended(scene: Scene, node: str, end: str):
    run = scene.app.ask_run("g", [("a", True)])
    scene.rows.node(run, status=node, position=-1)
    scene.work_on()
    assert scene.end_of("workflow", run) == end


def test_run_with_a_node_of_an_earlier_worker_is_let_go_when_the_rest_is_done(scene: Scene):
    run = scene.app.ask_run("g", [("a", True)])
    scene.rows.node(run, status="running", phase="provider_call", progress_at="ago 1 s")
    scene.work_on()
    row = scene.rows.row("workflow_runs", run)
    assert (row.status, row.lease_token, envelope(scene, f"workflow:{run}")) == ("running", None, "consumed")


def test_turn_asks_a_person_and_goes_on_with_the_answer(scene: Scene):
    turn = scene.app.ask_agent("c", {"ask": True})
    scene.work_on()
    assert scene.end_of("agent", turn) == "requires_input"
    assert scene.app.answer(turn, {"yes": True})
    assert not scene.app.answer(turn, {"no": True})
    scene.work_on()
    assert scene.end_of("agent", turn) == "succeeded"
    assert column(scene, "SELECT kind FROM productflow.agent_turn_events ORDER BY seq") == [
        "begun", "effect_begun", "effect_done", "question",
        "answer", "begun", "effect_begun", "effect_done", "turn_succeeded",
    ]  # fmt: skip
    assert column(scene, "SELECT status FROM productflow.agent_tasks") == ["succeeded"]
    assert scene.calls() == {(turn, 0): 1, (turn, 1): 1}


def test_turn_that_a_person_gave_up_is_cancelled_by_its_next_worker(scene: Scene):
    turn = scene.app.ask_agent("c", {"ask": True})
    scene.work_on()
    assert scene.app.cancel(turn)
    scene.work_on()
    assert (scene.end_of("agent", turn), scene.app.cancel(turn)) == ("cancelled", False)
    assert column(scene, "SELECT status FROM productflow.agent_tasks") == ["cancelled"]


def test_turn_that_was_to_be_cancelled_while_it_was_at_work_asks_nobody(scene: Scene):
    """The wish is staged behind the run that is at work: another run follows, and ends the turn."""
    turn = scene.app.ask_agent("c", {"ask": True})
    scene.send(scene.doomed)
    with scene.held_worker(16) as go_on:  # its call is made
        assert scene.app.cancel(turn)
        go_on()
    assert scene.end_of("agent", turn) == "cancel_requested"
    scene.work_on()
    assert (scene.end_of("agent", turn), scene.calls()) == ("cancelled", {(turn, 0): 1})


@pytest.mark.parametrize(("kind", "table"), [("workflow", "workflow_runs"), ("agent", "agent_turns")])
async def test_lease_of_a_row_is_prolonged_while_its_call_takes_long(scene: Scene, kind: str, table: str):
    number = scene.app.ask_run("g", [("a", True)]) if kind == "workflow" else scene.app.ask_agent("c")
    gates, stop = Gates(), asyncio.Event()
    gates.hold("called")
    scene.send(scene.doomed)
    serves = asyncio.create_task(
        serve(scene.database, scene.socket, stream=scene.doomed.name, points=gates, stop=stop, lease_s=1.0)
    )
    try:
        await gates.arrival("called")
        first = scene.rows.row(table, number).lease_expires_at
        await auntil(lambda: (scene.rows.row(table, number).lease_expires_at - first).total_seconds() > 1.2)
        gates.open("called")
        await auntil(lambda: not scene.open_envelopes())
    finally:
        stop.set()
        await serves
    assert scene.end_of(kind, number) == "succeeded"
