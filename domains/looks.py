"""Nothing is taken on one look: a database that was away for 2 s made 19 of 20 healthy workers look lost.

A worker that could not beat through an outage prolongs its lease within a second or two of the database's return. So a
run whose lease ended is noted, and believed only when its token and expiry are the same at a look at least the grace
later, with a connection that was never broken in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

PULSES = 4  # in one grace
MISSED = 3  # pulses; after a longer gap the process may have slept


class Looks:
    """First looks of this process. They die with it: its successor begins with first looks again.

    Somebody calls `awake` PULSES times a grace. A process that was stopped forgets its first looks before it believes
    one, whichever of its tasks the loop runs first when it goes on.
    """

    __slots__ = ("_awake_at", "_first", "_grace_s", "_monotonic")

    def __init__(self, grace_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._monotonic = monotonic
        self._first: dict[Hashable, tuple[Hashable, float]] = {}
        self._awake_at: float | None = None  # None: nobody calls awake

    def __repr__(self) -> str:
        return f"<Looks first={len(self._first)} grace={self._grace_s:g} s>"

    @property
    def grace_s(self) -> float:
        """How long the connection must be unbroken between the two looks, in seconds."""
        return self._grace_s

    @property
    def pulse_s(self) -> float:
        """How often `awake` is called, in seconds."""
        return self._grace_s / PULSES

    @property
    def open(self) -> int:
        """How many runs wait for their second look."""
        return len(self._first)

    def twice(self, run: Hashable, facts: Hashable) -> bool:
        """Look at `run`, which shows `facts` (token and expiry). True when it showed the same at least the grace ago.

        The first look stays: the decision may come to nothing (a lock, an error), and the run is as lost as before.
        """
        now = self._now()
        known = self._first.get(run)
        if known is None or known[0] != facts:
            self._first[run] = (facts, now)
            return False
        return now - known[1] >= self._grace_s

    def awake(self) -> None:
        """This process is awake now, and its connection unbroken since the last pulse."""
        self._awake_at = self._now()

    def broken(self) -> None:
        """The connection was interrupted: whatever was seen before counts for nothing."""
        self._first.clear()

    def drop_older(self, than_s: float) -> None:
        """Forget runs first looked at longer ago than `than_s` seconds: they came to an end without us."""
        limit = self._monotonic() - than_s
        self._first = {run: seen for run, seen in self._first.items() if seen[1] >= limit}

    def _now(self) -> float:
        """The time; after a gap in the pulses nothing that was seen before it counts."""
        now = self._monotonic()
        if self._awake_at is not None and now - self._awake_at > MISSED * self.pulse_s:
            self._first.clear()
            self._awake_at = now
        return now
