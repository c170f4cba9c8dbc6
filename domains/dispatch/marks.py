"""Marks that are owed: what was locked, or met a database that was away, goes with the next mark (DESIGN 4.4)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from .outbox import Mark, Outbox


@dataclass(slots=True)
class MarkCount:
    """How marks have ended since the start."""

    marked: int = 0
    skipped: int = 0  # locked elsewhere at the moment; tried again
    lost: int = 0  # no longer ours: a worker was faster, or the claim had ended


class Marks:
    """Writes marks, and keeps those that could not be written until their claim ends."""

    __slots__ = ("_monotonic", "_outbox", "_writing", "count", "owed")

    def __init__(self, outbox: Outbox, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._monotonic = monotonic
        self.count = MarkCount()
        self.owed: list[Mark] = []
        self._writing: Counter[UUID] = Counter()

    @property
    def tokens(self) -> set[UUID]:
        """Claims that a mark is owed to or being written for: whoever gave them back now would send the rows again."""
        return {mark.token for mark in self.owed} | set(self._writing)

    async def write(self, new: Sequence[Mark] = ()) -> None:
        """Mark the new rows and those owed in one statement. When the database is away all stay owed, and it raises."""
        owed, self.owed = self.owed, []
        marks = [*(mark for mark in owed if mark.expires > self._monotonic()), *new]
        self.count.lost += len(owed) + len(new) - len(marks)
        if not marks:
            return
        tokens = Counter({mark.token for mark in marks})
        self._writing += tokens
        try:
            left = await self._outbox.mark(marks)
        except BaseException:
            self.owed += marks
            raise
        finally:
            self._writing -= tokens
        if left:
            self.owed += [mark for mark in marks if left.get(mark.id) == "skipped"]
        skipped = sum(outcome == "skipped" for outcome in left.values())
        self.count.marked += len(marks) - len(left)
        self.count.skipped += skipped
        self.count.lost += len(left) - skipped
