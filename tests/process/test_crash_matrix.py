"""SIGKILL at every boundary of a worker and between any two statements of recovery: everything converges, no outside
call is ever made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import pytest
from support.crash import DOOMED, Scene, crash_scene
from support.crash_states import standing
from support.crash_workers import forked, work
from support.dispatcher import kill
from support.runs import owner_of
from support.servers import PgServer, RedisServer
from support.waiting import until

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True, slots=True)
class Work:
    """What one worker does with one row: `ask` makes the row and returns its id, `boundaries` are the points it comes
    to, in order, and how the row ends when the worker is killed there: stretches of (end, outside calls, points).
    """

    kind: str
    ask: Callable[[Scene], str]
    boundaries: tuple[tuple[str, int, str], ...]

    @property
    def table(self) -> list[tuple[str, str, int]]:
        """(point, end, calls), in order."""
        return [(point, end, calls) for end, calls, points in self.boundaries for point in points.split()]


def answered(scene: Scene) -> str:
    """A turn that asked a person, and was answered: the first of its calls is made."""
    turn = scene.app.ask_agent("c", {"ask": True})
    scene.work_on()
    assert scene.app.answer(turn, {"yes": True})
    return turn


def cancelled(scene: Scene) -> str:
    """A turn that is to end before it began."""
    turn = scene.app.ask_agent("c")
    assert scene.app.cancel(turn)
    return turn


def mail(scene: Scene) -> str:
    """An envelope of an actor without a business domain."""
    return str(scene.stage("mail"))


# An intent that is committed says that the call may have been made: from there on only a stored result is good enough.
PATHS = {
    "delivery": Work("delivery", lambda scene: scene.app.ask_delivery(), (
        ("succeeded", 0, "begun claim_delivery fence claimed progress_delivery progressed rendered finish_delivery"
                         " stored settled"),
    )),
    "local_edit": Work("local_edit", lambda scene: scene.app.ask_edit({"crop": 1}), (
        ("succeeded", 1, "begun claim_edit fence claimed progress_edit insert_effect fence"),
        ("unknown", 0, "intent progress_edit provider_call"),
        ("unknown", 1, "called progress_edit provider_result_received finish_edit apply_effect stored"),
        ("succeeded", 1, "settled"),
    )),
    "image_session": Work("image_session", lambda scene: scene.app.ask_images(2), (
        ("succeeded", 2, "begun claim_session missing_images fence claimed begin_image insert_effect fence"),
        ("unknown", 0, "intent"),
        ("unknown", 1, "called end_image store_image apply_effect"),
        ("succeeded", 2, "saved begin_image insert_effect fence"),
        ("unknown", 1, "intent"),
        ("unknown", 2, "called end_image store_image apply_effect finish_session stored"),
        ("succeeded", 2, "settled"),
    )),
    "workflow": Work("workflow", lambda scene: scene.app.ask_run("g", [("call", True), ("join", False)]), (
        ("succeeded", 1, "begun take_run fence taken hold_run claim_node claimed hold_run progress_node prepared"
                         " hold_run progress_node insert_effect fence"),
        ("unknown", 0, "intent"),
        ("unknown", 1, "called hold_run progress_node result_received hold_run finish_node apply_effect"),
        ("succeeded", 1, "node_stored hold_run claim_node claimed hold_run progress_node prepared hold_run finish_node"
                         " node_stored hold_run claim_node hold_run run_is_closable close_run stored settled"),
    )),
    "agent": Work("agent", lambda scene: scene.app.ask_agent("c"), (
        ("succeeded", 1, "begun lock_turn needs_worker take_turn start_task fence claimed progress_turn append_event"),
        ("unknown", 0, "started progress_turn insert_effect append_event fence intent"),
        ("unknown", 1, "called progress_turn apply_effect append_event effect_stored finish_turn finish_task"
                       " append_event stored"),
        ("succeeded", 1, "settled"),
    )),
    "agent_asks": Work("agent", lambda scene: scene.app.ask_agent("c", {"ask": True}), (
        ("requires_input", 1, "begun lock_turn needs_worker take_turn start_task fence claimed progress_turn"
                              " append_event"),
        ("unknown", 0, "started progress_turn insert_effect append_event fence intent"),
        ("unknown", 1, "called progress_turn apply_effect append_event effect_stored ask_person append_event stored"),
        ("requires_input", 1, "settled"),
    )),
    "agent_answered": Work("agent", answered, (
        ("succeeded", 2, "begun lock_turn needs_worker take_turn start_task fence claimed progress_turn append_event"
                         " append_event"),
        ("unknown", 1, "started progress_turn insert_effect append_event fence intent"),
        ("unknown", 2, "called progress_turn apply_effect append_event effect_stored finish_turn finish_task"
                       " append_event stored"),
        ("succeeded", 2, "settled"),
    )),
    "agent_cancelled": Work("agent", cancelled, (
        ("cancelled", 0, "begun lock_turn needs_worker take_turn start_task fence claimed finish_turn finish_task"
                         " append_event stored settled"),
    )),
    "envelope": Work("envelope", mail, (
        ("consumed", 1, "begun"),
        ("unknown", 0, "effect_begun"),
        ("unknown", 1, "called"),
        ("consumed", 1, "effect_done stored settled"),
    )),
}  # fmt: skip
BOUNDARIES = [(name, nth) for name, path in PATHS.items() for nth in range(1, len(path.table) + 1)]


@pytest.fixture(scope="module")
def stage(pg_server: PgServer, redis_server: RedisServer) -> Generator[Scene]:
    """One database and one healthy worker for all of this file."""
    with crash_scene(pg_server, redis_server) as scene:
        yield scene


@pytest.fixture
def scene(stage: Scene) -> Scene:
    """Nothing in it yet."""
    stage.wipe()
    return stage


def settled_well(scene: Scene, path: Work, number: str, *, end: str, calls: int) -> None:
    """Nothing is open, the row ended so, and nothing outside was asked for twice."""
    scene.converge(path.kind, "envelope")
    assert scene.end_of(path.kind, number) == end
    made = scene.calls()
    assert (sum(made.values()), max(made.values(), default=1)) == (calls, 1), made
    assert max(scene.live_envelopes().values(), default=1) == 1


@pytest.mark.parametrize(
    ("name", "nth"), BOUNDARIES, ids=[f"{name}-{nth:02}-{PATHS[name].table[nth - 1][0]}" for name, nth in BOUNDARIES]
)
def test_worker_killed_at_a_boundary_leaves_what_recovery_can_place(scene: Scene, name: str, nth: int):
    path = PATHS[name]
    _, end, calls = path.table[nth - 1]
    number = path.ask(scene)
    scene.send(scene.doomed)
    (envelope,) = scene.open_envelopes()
    came_to, signal = scene.killed_worker(nth)
    assert (came_to, signal) == ([point for point, _, _ in path.table[:nth]], 9)
    settled_well(scene, path, number, end=end, calls=calls)
    scene.send_twice(envelope.id, envelope.actor)  # the dead worker's message, taken over by another
    assert scene.end_of(path.kind, number) == end
    assert sum(scene.calls().values()) == calls


@pytest.mark.parametrize("name", PATHS)
def test_worker_killed_with_a_message_that_it_read_and_did_not_begin_loses_nothing(scene: Scene, name: str):
    path = PATHS[name]
    number = path.ask(scene)
    scene.send(scene.doomed)
    (envelope,) = scene.open_envelopes()
    with owner_of(scene.database) as locker:
        locker.rows("BEGIN")
        locker.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", envelope.id)
        with forked(lambda: work(scene.database, scene.socket, stream=DOOMED)) as pid:
            until(scene.doomed.pending)
            kill(pid)
        until(lambda: not scene.is_connected(pid))
    assert [row.status for row in scene.open_envelopes()] == ["sent"]
    _, end, calls = path.table[-1]
    settled_well(scene, path, number, end=end, calls=calls)


# What a worker is at when it is late: the call is made, or the rendering done.
LATE = {"rendered", "called"}


def late_at(scene: Scene, name: str, nth: int) -> None:
    """A worker that stands still at its n-th point is taken for lost; then it goes on, and nothing changes."""
    path = PATHS[name]
    path.ask(scene)
    scene.send(scene.doomed)
    with scene.held_worker(nth) as go_on:
        scene.lose_everybody()
        scene.recover(path.kind, cycles=3)
        said = standing(scene)
        taken = not scene.open_envelopes()
        go_on()
        if taken:
            assert standing(scene) == said
    scene.converge(path.kind, "envelope")
    assert max(scene.calls().values(), default=1) == 1


@pytest.mark.parametrize(
    ("name", "nth"), [(name, nth) for name, nth in BOUNDARIES if PATHS[name].table[nth - 1][0] in LATE]
)
def test_late_worker_is_refused_and_told_and_its_row_stays_as_recovery_said(scene: Scene, name: str, nth: int):
    late_at(scene, name, nth)
    (told,) = scene.rows.all("SELECT reason FROM pfsup.audit_log WHERE action = 'late'")
    assert " reported consumed at " in told.reason


@pytest.mark.long  # the boundaries after a call are in the test before this one
@pytest.mark.parametrize(("name", "nth"), BOUNDARIES)
def test_worker_that_is_late_at_any_boundary_makes_no_second_call(scene: Scene, name: str, nth: int):
    """Inside a transaction it holds locks: recovery passes it over and waits for none of them."""
    late_at(scene, name, nth)
