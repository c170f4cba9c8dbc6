"""What becomes of a stuck run, node by node, and whose turn it is in a graph (DOMAINS.md, workflow).

A run's worker is gone when its lease in workflow_runs has ended and no worker holds its envelope. Which of its running
nodes are judged:

- its envelope is running and lost (two looks): all of them, whatever their silence. They were that worker's, and the
  worker is proved to be gone; silence stands in only where there is no envelope to prove it by.
- there is no envelope: the silent ones. One that is not silent yet stays as it is, and alone it is still_running.
- its envelope is dead or unknown, or the envelope's journal says that an effect began: all of them are unknown.

A run with nothing to judge and nothing left to do is sent out too: closing it is the worker's, which knows what belongs
to an end. So is one without any node: there is nothing to repeat, and `max_recoveries` bounds it. After that it is
failed, whatever its nodes are, but for one thing: nodes still running are judged first, and with one unknown node the
run is unknown. A failed run never hides a call that nobody can prove. Nodes still queued stay so in a run that ended:
a person's retry goes on with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..decisions import (
    Change,
    Decision,
    Ended,
    Limits,
    Lost,
    Run,
    Staging,
    Verdict,
    look_after,
    moved_on,
    still_running,
)

OPEN = ("queued", "running")
BEFORE_THE_CALL = (None, "claimed", "prepared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A running node. `called`: the journal has a result, or a call that is unknown, of its present attempt."""

    id: str
    node: str
    phase: str | None
    silent: bool
    called: bool

    @property
    def repeatable(self) -> bool:
        """It is proved that its provider call never began. Any phase not known is no proof."""
        return self.phase in BEFORE_THE_CALL and not self.called


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one run. `nodes`: how many it has; `queued`, `unknown`: how many of them are; `running`: which.

    `lease_alive`: its worker's lease in the run itself has not ended.
    """

    id: str
    status: str
    lease_alive: bool
    nodes: int
    queued: int
    unknown: int
    running: tuple[Node, ...]
    checks: int
    recoveries: int
    run: Run | None = None

    @property
    def silent(self) -> bool:
        """Nobody is seen at work on it: no node is running, or one has been silent for `stale_after`."""
        return not self.running or any(node.silent for node in self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What is known of a queued run. `behind`: the running run of its graph; `first`: it is the oldest in line."""

    id: str
    status: str
    behind: str | None
    first: bool
    checks: int
    recoveries: int
    run: Run | None = None


def evidence(row: Mapping[str, Any], run: Run | None) -> Evidence:
    """The re-read row as evidence."""
    names = ("id", "status", "lease_alive", "nodes", "queued", "unknown", "checks", "recoveries")
    running = tuple(Node(**node) for node in row["running"])
    return Evidence(**{name: row[name] for name in names}, running=running, run=run)


def waiting(row: Mapping[str, Any], run: Run | None) -> Waiting:
    """The re-read row as evidence."""
    names = ("id", "status", "behind", "first", "checks", "recoveries")
    return Waiting(**{name: row[name] for name in names}, run=run)


def decide(seen: Evidence, limits: Limits) -> Verdict:
    """The first, second and fourth row of the table: a running run whose worker may be gone."""
    if seen.status != "running":
        return moved_on(f"it is {seen.status}", finished=seen.status not in OPEN)
    if seen.lease_alive:
        return moved_on("its lease is alive again", finished=False)
    found = look_after(seen.run, queued=False, silent=seen.silent, limits=limits)
    match found:
        case Verdict():
            return found
        case Ended():
            return _unknown(found.why, (), seen.running)
        case Lost() if seen.run is not None and seen.run.uncertain:
            return _unknown(f"{found.why}; its journal says that an outside effect began", (), seen.running)
        case Lost():
            return _recover(seen, found.why, limits)


def _recover(seen: Evidence, why: str, limits: Limits) -> Verdict:
    judged = tuple(node for node in seen.running if node.silent or seen.run is not None)
    again = tuple(node for node in judged if node.repeatable)
    lost = tuple(node for node in judged if not node.repeatable)
    rest = len(seen.running) - len(judged)
    if seen.recoveries >= limits.max_recoveries:
        return _over_the_cap(seen, f"{why}; {seen.recoveries} recoveries did not help", again, lost, rest)
    if lost and not (again or rest or seen.queued):
        return _unknown(f"{why}; all its nodes have ended", (), lost)
    return Verdict(
        decision=Decision.REDISPATCH,
        reason=_said(why, again, lost),
        after="running",
        changes=(*_changes(again, lost), Change(name="release")),
        stage=Staging(aggregate_id=seen.id, payload={"run_id": seen.id}),
        charged=True,
    )


def _over_the_cap(seen: Evidence, why: str, again: tuple[Node, ...], lost: tuple[Node, ...], rest: int) -> Verdict:
    if rest:
        return still_running(f"{why}, but {rest} of its nodes are not silent yet")
    if lost:
        return _unknown(why, again, lost)
    if seen.unknown:
        return _unknown(f"{why}; {seen.unknown} of its nodes are unknown", again, ())
    return _closed(Decision.GIVE_UP, "failed", _said(why, again, ()), _changes(again, ()))


def _unknown(why: str, again: tuple[Node, ...], lost: tuple[Node, ...]) -> Verdict:
    return _closed(Decision.OUTCOME_UNKNOWN, "unknown", _said(why, again, lost), _changes(again, lost))


def _closed(decision: Decision, becomes: str, why: str, changes: tuple[Change, ...]) -> Verdict:
    close = Change(name="close", params={"becomes": becomes})
    return Verdict(decision=decision, reason=why, after=becomes, changes=(*changes, close))


def _changes(again: tuple[Node, ...], lost: tuple[Node, ...]) -> tuple[Change, ...]:
    """The nodes' own ends; the changes of the run come after them."""
    both = (("requeue_nodes", again), ("lose_nodes", lost))
    return tuple(Change(name=name, params={"nodes": [node.id for node in nodes]}) for name, nodes in both if nodes)


def _said(why: str, again: tuple[Node, ...], lost: tuple[Node, ...]) -> str:
    """The reason, and what of each node led to its end."""
    parts = [why]
    if lost:
        parts.append(f"a provider call may have begun: {_named(lost)}")
    if again:
        parts.append(f"no provider call began: {_named(again)}")
    return "; ".join(parts)


def _named(nodes: Iterable[Node]) -> str:
    return ", ".join(f"{node.node} ({node.phase or 'no phase'})" for node in nodes)


def decide_turn(seen: Waiting, limits: Limits) -> Verdict:
    """The third row of the table: a graph with a queued run and no running run.

    A queued run is sent out as it is: the rules about phases judge running ones only. What it costs is not counted.
    """
    if seen.status != "queued":
        return moved_on(f"it is {seen.status}", finished=seen.status not in OPEN)
    if seen.behind is not None:
        return moved_on(f"run {seen.behind} of its graph is running", finished=False)
    if not seen.first:
        return moved_on("an older run of its graph is first", finished=False)
    found = look_after(seen.run, queued=True, silent=True, limits=limits)
    match found:
        case Verdict():
            return found
        case Lost() if seen.run is None or not seen.run.uncertain:
            return Verdict(
                decision=Decision.REDISPATCH,
                reason=f"its turn has come; {found.why}",
                after="running",
                changes=(Change(name="promote", raced="another run of its graph began this moment"),),
                stage=Staging(aggregate_id=seen.id, payload={"run_id": seen.id}),
            )
        case Lost() | Ended():
            return _closed(Decision.OUTCOME_UNKNOWN, "unknown", f"{found.why}; an outside effect may have begun", ())
