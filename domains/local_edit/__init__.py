"""Local edit: a provider changes a part of an image; run again only where its call is proved not made (DOMAINS.md)."""

from __future__ import annotations

from ...config.values import Settings
from ...shared.points import NO_POINTS, Points
from ..business import Business
from ..phase import Phase
from .decide import Evidence, decide, evidence

TABLE = "local_edit_tasks"
PHASES: tuple[Phase[Evidence], ...] = (
    Phase(find="find", recheck="recheck", evidence=evidence, decide=decide, reads_again=True),
)


class LocalEdit(Business):
    """The role of `[domains.local_edit]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        super().__init__(settings, name, package="pfsup.domains.local_edit", phases=PHASES, table=TABLE, points=points)
