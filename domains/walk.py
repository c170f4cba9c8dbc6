"""Where a finder's pages begin, so that no number of rows that cannot move hides the ones behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Place = tuple[Any, str]  # a row's time and id, as the finder's index has them

START: Place = ("-infinity", "")


class Walk:
    """Where a cycle's pages begin: at the oldest row, and every other time where the walk before left off, if it did
    not come to the end. Rows at the head that wake up again and again, however many, hide none behind them.
    """

    __slots__ = ("_goes_on", "_place")

    def __init__(self) -> None:
        self._place = START
        self._goes_on = False

    def begin(self) -> Place:
        """The place after which this cycle's first page begins."""
        self._goes_on = not self._goes_on and self._place != START
        return self._place if self._goes_on else START

    def end(self, place: Place) -> None:
        """The cycle left off at `place`; START: it came to the end. One that began anew leaves an older place alone."""
        if self._goes_on or self._place == START:
            self._place = place


def place_of(row: Mapping[str, Any]) -> Place:
    """The place of a row that a finder returned."""
    return row["last_at"], row["last_id"]
