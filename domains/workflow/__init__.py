"""Workflow: runs of a graph, node by node; one of a graph at a time, the next one's turn is given here (DOMAINS.md)."""

from __future__ import annotations

from typing import Any

from ...config.values import Settings
from ...shared.points import NO_POINTS, Points
from ..business import Business
from ..phase import Phase
from .decide import Evidence, Waiting, decide, decide_turn, evidence, waiting

RUNS: Phase[Evidence] = Phase(
    find="find_runs", recheck="recheck_run", evidence=evidence, decide=decide, reads_again=True
)
TURNS: Phase[Waiting] = Phase(
    find="find_waiting", recheck="recheck_waiting", evidence=waiting, decide=decide_turn, takes_rest=True
)
TABLE = "workflow_runs"
PHASES: tuple[Phase[Any], ...] = (RUNS, TURNS)


class Workflow(Business):
    """The role of `[domains.workflow]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        super().__init__(settings, name, package="pfsup.domains.workflow", phases=PHASES, table=TABLE, points=points)
