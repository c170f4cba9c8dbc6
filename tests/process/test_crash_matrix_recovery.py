"""SIGKILL of recovery between any two statements of a cycle: the next cycles come to the same end as without it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from support.crash import Scene, by_default, crash_scene
from support.crash_cycles import look_twice
from support.crash_states import CALLED, STATES, standing
from support.crash_workers import KilledAt
from support.servers import PgServer, RedisServer

pytestmark = pytest.mark.timeout(120)

# What of each domain a state must have made it do, besides what every cycle does.
WRITES = {
    "delivery": {"redispatch_key", "requeue", "fail", "end_lost", "end_run"},
    "local_edit": {"redispatch_key", "requeue", "lose", "end_lost", "end_run"},
    "image_session": {"repair", "redispatch_key", "requeue", "lose", "end_lost"},
    "workflow": {"redispatch_key", "requeue_nodes", "lose_nodes", "release", "promote", "close", "end_lost"},
    "agent": {
        "collect", "release", "redispatch_key", "make_first_turn", "name_first_turn", "end_lost", "end_turn",
        "end_task_of_turn", "interrupt", "append_unknown", "reconcile",
    },
    "envelope": {"redispatch", "end_lost", "look_again"},
}  # fmt: skip


@pytest.fixture(scope="module")
def stage(pg_server: PgServer, redis_server: RedisServer) -> Generator[Scene]:
    """One database for all of this file."""
    with crash_scene(pg_server, redis_server) as scene:
        yield scene


@pytest.fixture
def scene(stage: Scene) -> Scene:
    """Nothing in it yet."""
    stage.wipe()
    return stage


def killed_cycle(scene: Scene, kind: str, nth: int) -> tuple[list[str], int]:
    """A fresh state, and recovery killed at the n-th point of its two cycles; its points, its signal."""
    scene.wipe()
    STATES[kind](scene)
    return scene.dies(lambda pipe: look_twice(scene.database, kind, KilledAt(nth, pipe)))


@pytest.mark.parametrize("kind", [by_default(kind) for kind in STATES])
def test_recovery_killed_between_two_statements_converges_to_the_end_that_it_had_without(scene: Scene, kind: str):
    points, signal = killed_cycle(scene, kind, 0)
    assert (signal, set(points) >= WRITES[kind]) == (0, True), points
    scene.recover(kind, cycles=3)
    end = standing(scene)
    for nth in range(1, len(points) + 1):
        came_to, signal = killed_cycle(scene, kind, nth)
        assert (signal, len(came_to)) == (9, nth)
        scene.recover(kind, cycles=3)
        now = standing(scene)
        assert now == end, (nth, came_to[-3:], now - end, end - now)


@pytest.mark.parametrize("kind", [by_default(kind) for kind in STATES])
def test_what_recovery_leaves_is_worked_off_and_no_call_is_made_that_may_have_been_made(scene: Scene, kind: str):
    STATES[kind](scene)
    scene.recover(kind, cycles=3)
    scene.converge(kind, "envelope")
    made = scene.calls()
    assert [task for task, _ in made if task.startswith(CALLED)] == []
    assert max(made.values(), default=1) == 1
