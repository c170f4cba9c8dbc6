"""A supervisor on paper: the real table, plan and changes under a clock that tests own, with no process behind it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from pfsup.shared.backoff import Backoff
from pfsup.supervisor.parent import changes
from pfsup.supervisor.parent.plan import (
    Action,
    Doubt,
    Dump,
    Kill,
    Recheck,
    Rest,
    Spawn,
    Stop,
    finished,
    next_due,
    plan,
)
from pfsup.supervisor.parent.spec import Group, Limits, Spec
from pfsup.supervisor.parent.table import Child, Fact, State

BOTH: Mapping[str, Group] = {"r": "recovery", "d": "main"}
WALL = 1_800_000_000.0


class Paper:
    """`groups` maps children's names to their groups. `done` holds every act with its time."""

    def __init__(self, groups: Mapping[str, Group] | None = None, *, limits: Limits | None = None) -> None:
        self.now = 1000.0
        self.done: list[tuple[float, Action]] = []
        self.group_is_empty = True
        self.state = State(
            children={
                name: Child(spec=Spec(name=name, target="m:C", group=group), backoff=self._backoff())
                for name, group in (groups or {"a": "recovery"}).items()
            },
            limits=limits or Limits(),
        )

    def child(self, name: str = "a") -> Child:
        """One row."""
        return self.state.children[name]

    def settle(self) -> list[Action]:
        """Plan and act until nothing is due now; the acts. Fails when that does not end: such a loop would spin."""
        acts: list[Action] = []
        for _ in range(10 * len(self.state.children) + 10):
            due = plan(self.state, self.now)
            if not due:
                assert self.finished or next_due(self.state, self.now) > self.now
                return acts
            for act in due:
                self._act(act)
            acts += due
        raise AssertionError(f"it would spin: {acts[-3:]}")

    def run_until(self, time: float) -> list[Action]:
        """Let the clock jump from deadline to deadline up to `time`; the acts."""
        acts = self.settle()
        while not self.finished and (due := next_due(self.state, self.now)) <= time:
            self.now = due
            acts += self.settle()
        self.now = time
        return acts

    def hear(self, name: str = "a", **message: Any) -> None:
        """The child says something."""
        changes.heard(self.child(name), message, self.now, WALL)

    def end(self, name: str = "a", *, code: int | None = 0, signum: int | None = None) -> None:
        """The child's process ends."""
        child = self.child(name)
        changes.exited(child, self.state, code=code, signum=signum, now=self.now, wall=WALL)
        self._recheck(child)

    def ask_to_stop(self) -> None:
        """A signal to the supervisor."""
        changes.stop_asked(self.state, self.now)

    def get_ready(self, names: Iterable[str] = ("a",)) -> None:
        """Start the children and let them say ready."""
        self.settle()
        for name in names:
            self.hear(name, type="ready")

    @property
    def finished(self) -> bool:
        """True if the supervisor would leave its loop."""
        return finished(self.state, self.now)

    def _act(self, act: Action) -> None:
        self.done.append((self.now, act))
        child, now = self.child(act.name), self.now
        match act:
            case Spawn():
                child.generation += 1
                changes.spawned(child, self.state, 4711, now, WALL)
            case Stop(deadline=deadline):
                changes.told_to_stop(child, deadline, now, WALL)
            case Dump():
                child.clocks.dumped = now
            case Kill(why=why):
                changes.kill_sent(child, why, now, WALL)
            case Doubt():
                changes.step(child, Fact.SURVIVED_KILL, now, WALL)
            case Recheck():
                self._recheck(child)
            case Rest():
                changes.step(child, Fact.RESTED, now, WALL)

    def _recheck(self, child: Child) -> None:
        if self.group_is_empty:
            changes.group_gone(child, self.state, self.now, WALL)
        else:
            changes.still_there(child, self.now)

    def _backoff(self) -> Backoff:
        return Backoff(0.5, 30.0, rng=random.Random(7))
