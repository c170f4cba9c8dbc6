"""Named points inside a loop, so that a test can observe or hold it there instead of sleeping and hoping."""

from __future__ import annotations


class Points:
    """Where nothing happens. A test passes its own kind, which records, blocks or kills at the point it names."""

    __slots__ = ()

    async def reach(self, name: str, **facts: object) -> None:
        """Be told that the work has come to point `name`; `facts` say with what. Returning lets it go on."""


NO_POINTS = Points()
