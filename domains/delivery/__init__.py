"""Delivery: jobs that render the same bytes every time, so a stuck one is simply started again (DOMAINS.md)."""

from __future__ import annotations

from ...config.values import Settings
from ...shared.points import NO_POINTS, Points
from ..business import Business
from ..phase import Phase
from .decide import Evidence, decide, evidence

TABLE = "delivery_jobs"
PHASES: tuple[Phase[Evidence], ...] = (Phase(find="find", recheck="recheck", evidence=evidence, decide=decide),)


class Delivery(Business):
    """The role of `[domains.delivery]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        super().__init__(settings, name, package="pfsup.domains.delivery", phases=PHASES, table=TABLE, points=points)
