"""Where a worker can die: five boundaries of a run, and the named points that lie on them."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum

from ...shared.points import Points


class Boundary(StrEnum):
    """What has happened when the worker dies, and the next thing has not."""

    READ = "read"  # the message is read, the run not begun
    BEGUN = "begun"
    EFFECT_BEGUN = "effect begun"  # its intent is committed, the provider not called
    EFFECT_DONE = "effect done"  # the provider has answered; the journal says so where it is pfsup's own
    SETTLED = "settled"  # the message not acknowledged


BOUNDARY_OF = {
    "read": Boundary.READ,
    "begun": Boundary.BEGUN,
    "effect_begun": Boundary.EFFECT_BEGUN,
    "intent": Boundary.EFFECT_BEGUN,
    "effect_done": Boundary.EFFECT_DONE,
    "called": Boundary.EFFECT_DONE,
    "settled": Boundary.SETTLED,
}


class DiesAt(Points):
    """Stands still for ever at the first point on `boundary`, and says so: "at BOUNDARY|ACTOR|ID". To be killed then.

    `actor`: only with a task of that actor; "": with any. The other tasks go on until the process dies.
    """

    def __init__(self, boundary: Boundary, actor: str = "") -> None:
        self._boundary = boundary
        self._actor = actor
        self._said = False

    async def reach(self, name: str, **facts: object) -> None:
        """Stop the first task that comes to the boundary."""
        if self._said or BOUNDARY_OF.get(name) is not self._boundary or self._actor not in ("", facts.get("actor")):
            return
        self._said = True
        subject = facts.get("id") or f"dispatch {facts['dispatch_id']}"
        sys.stdout.write(f"at {self._boundary}|{facts.get('actor', '')}|{subject}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
