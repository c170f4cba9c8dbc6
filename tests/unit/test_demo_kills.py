"""Which worker is to die where: every boundary has its turn, the domains too, and a delivery never within a call."""

from __future__ import annotations

from typing import cast

from pfsup.supervisor.demo.boundaries import Boundary
from pfsup.supervisor.demo.cast import Cast
from pfsup.supervisor.demo.kills import Killer
from pfsup.supervisor.demo.orders import DOMAINS


class Stage:
    """Workers that come to their boundary at once, by name."""

    def __init__(self) -> None:
        self.doomed: dict[str, tuple[Boundary, str]] = {}
        self.killed: list[str] = []

    def start_doomed(self, name: str, boundary: Boundary, actor: str) -> None:
        self.doomed[name] = (boundary, actor)

    def heard(self, name: str) -> list[str]:
        boundary, actor = self.doomed[name]
        return ["ready", f"at {boundary}|{actor}|{name}"]

    def kill(self, name: str) -> None:
        self.killed.append(name)


def played(turns: int) -> tuple[Killer, Stage]:
    """The act over so many turns, three seconds apart."""
    killer, stage = Killer(), Stage()
    for turn in range(turns):
        killer.act(3.0 * turn, cast("Cast", stage))
    return killer, stage


def test_every_boundary_and_every_domain_has_its_turn():
    killer, stage = played(40)
    assert killer.complete
    assert max(killer.by_boundary.values()) - min(killer.by_boundary.values()) <= 12
    assert {actor for _, actor in stage.doomed.values()} == {"", *DOMAINS}


def test_delivery_never_dies_within_a_call_outside():
    _, stage = played(60)
    where = {boundary for boundary, actor in stage.doomed.values() if actor == "delivery"}
    assert where == {Boundary.BEGUN, Boundary.SETTLED}


def test_kill_notes_where_the_worker_stood_and_with_what():
    killer, stage = played(2)
    assert (killer.kills[0].boundary, killer.kills[0].subject) == (stage.doomed["doomed 1"][0], "doomed 1")
    assert stage.killed == ["doomed 1"]


def test_end_leaves_nobody_standing():
    killer, stage = played(5)
    killer.end(cast("Cast", stage))
    assert sorted(stage.killed) == sorted(stage.doomed)
