"""Image session: images one after another; goes on only where every call so far is proved (DOMAINS.md)."""

from __future__ import annotations

from ...config.values import Settings
from ...shared.points import NO_POINTS, Points
from ..business import Business
from ..phase import Phase
from .decide import Evidence, decide, evidence

TABLE = "image_tasks"
PHASES: tuple[Phase[Evidence], ...] = (
    Phase(find="find", recheck="recheck", evidence=evidence, decide=decide, repairs=("repair",)),
)


class ImageSession(Business):
    """The role of `[domains.image_session]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        super().__init__(
            settings, name, package="pfsup.domains.image_session", phases=PHASES, table=TABLE, points=points
        )
