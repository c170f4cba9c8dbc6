"""Agent: turns of a conversation, each owned by a worker under a fencing token and a lease (DOMAINS.md)."""

from __future__ import annotations

from typing import Any

from ...config.values import Settings
from ...shared.points import NO_POINTS, Points
from ..business import Business
from ..phase import Phase
from . import decide, first_turn

EXPIRED: Phase[decide.Turn] = Phase(
    find="find_expired",
    recheck="recheck_turn",
    evidence=decide.evidence,
    decide=decide.decide_expired,
    repairs=("lock_effects",),
)
UNSTARTED: Phase[first_turn.Task] = Phase(
    find="find_unstarted",
    recheck="recheck_task",
    evidence=first_turn.evidence,
    decide=first_turn.decide,
    repairs=("wait_little", "make_first_turn"),
)
UNBOUND: Phase[decide.Turn] = Phase(
    find="find_unbound",
    recheck="recheck_turn",
    evidence=decide.evidence,
    decide=decide.decide_unbound,
    repairs=("lock_effects",),
)
TABLE = "agent_turns"
PHASES: tuple[Phase[Any], ...] = (EXPIRED, UNSTARTED, UNBOUND)


class Agent(Business):
    """The role of `[domains.agent]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        super().__init__(settings, name, package="pfsup.domains.agent", phases=PHASES, table=TABLE, points=points)
