"""Workers and recovery on the same rows at the same time: whoever is late is refused, and nobody waits in a circle."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping

import pytest
from support.crash import Scene, by_default, crash_scene
from support.crash_cycles import cycle_on
from support.crash_workers import forked
from support.servers import PgServer, RedisServer

pytestmark = pytest.mark.timeout(120)
REPETITIONS, ROWS = 20, 8


@pytest.fixture(scope="module")
def stage(pg_server: PgServer, redis_server: RedisServer) -> Generator[Scene]:
    """One database and two healthy workers for all of this file."""
    with crash_scene(pg_server, redis_server, workers=2) as scene:
        yield scene


@pytest.fixture
def scene(stage: Scene) -> Scene:
    """Nothing in it yet."""
    stage.wipe()
    return stage


ASKS: Mapping[str, Callable[[Scene, int], str]] = {
    "delivery": lambda scene, _: scene.app.ask_delivery(),
    "local_edit": lambda scene, n: scene.app.ask_edit({"n": n}),
    "image_session": lambda scene, _: scene.app.ask_images(3),
    "workflow": lambda scene, n: scene.app.ask_run(f"g{n % 3}", [("a", True), ("b", False), ("c", True)]),
    "agent": lambda scene, n: scene.app.ask_agent(f"c{n % 2}", {"ask": False}),
    "envelope": lambda scene, _: str(scene.stage("mail")),
}


def over(scene: Scene) -> bool:
    """No row and no envelope is open."""
    return not (scene.open_envelopes() or scene.pending_envelopes() or scene.open_rows())


@pytest.mark.parametrize("kind", [by_default(kind) for kind in ASKS])
def test_live_writers_and_recovery_meet_no_deadlock_and_no_call_is_made_twice(scene: Scene, kind: str):
    before = scene.deadlocks()
    limit = time.monotonic() + 100
    with forked(lambda: cycle_on(scene.database, kind)) as pid:
        for repetition in range(REPETITIONS):
            for row in range(ROWS):
                ASKS[kind](scene, repetition * ROWS + row)
            while not over(scene):
                assert time.monotonic() < limit, scene
                scene.send(scene.healthy)
        assert scene.lives(pid)
    made = scene.calls()
    assert max(made.values(), default=1) == 1, made
    assert scene.deadlocks() == before
    assert scene.rows.all("SELECT last_error FROM pfsup.async_dispatches WHERE last_error LIKE '%%Deadlock%%'") == []
