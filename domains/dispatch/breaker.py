"""When the broker, or one stream, is left alone, and how it is tried again. Pure: time comes in, nothing goes out.

closed ── fails ──► open ── its time has come ──► trial of 1, 2, 4 rows ── all good ──► closed
                      ▲                              │
                      └──────────── fails ───────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ...shared.backoff import Backoff

TRIAL_SIZES = (1, 2, 4)


class State(Enum):
    """Where a breaker stands."""

    CLOSED = "closed"  # work flows
    OPEN = "open"  # nothing is claimed until retry_at
    TRIAL = "trial"  # one small batch at a time


class Breaker:
    """One breaker. `retry_at` and `now` are on one monotonic clock, in seconds."""

    __slots__ = ("_backoff", "_step", "_with_neighbour", "reason", "retry_at", "since", "state")

    def __init__(self, backoff: Backoff, *, with_neighbour: bool = False) -> None:
        self._backoff = backoff
        self._with_neighbour = with_neighbour
        self._step = 0
        self.state = State.CLOSED
        self.reason = ""
        self.retry_at = 0.0
        self.since = 0.0

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value} failures={self._backoff.failures} {self.reason!r}>"

    @property
    def trial_size(self) -> int:
        """How many rows the next trial may take.

        `with_neighbour` (streams): every second first trial takes two. A first row that is refused for ever must not be
        tried alone for ever: only when a neighbour gets through is it known whose fault it is.
        """
        size = TRIAL_SIZES[min(self._step, len(TRIAL_SIZES) - 1)]
        return 2 if self._with_neighbour and size == 1 and self._backoff.failures % 2 == 0 else size

    def failed(self, now: float, reason: str) -> bool:
        """Note a failure; True if it opened a closed breaker. Late failures of what began before change nothing."""
        if self.state is State.OPEN:
            return False
        opened = self.state is State.CLOSED
        if opened:
            self.since = now
        self.state, self.reason = State.OPEN, reason
        self.retry_at = now + self._backoff.next_s()
        return opened

    def begin_trial(self) -> None:
        """Its time has come: let one small batch through."""
        self.state, self._step = State.TRIAL, 0

    def passed(self) -> bool:
        """A trial was answered well; True when that closed the breaker. The trials grow: 1, 2, 4 rows."""
        if self.state is not State.TRIAL:
            return False
        self._step += 1
        if self._step < len(TRIAL_SIZES):
            return False
        self.close()
        return True

    def close(self) -> None:
        """All is well again."""
        self.state, self._step, self.reason = State.CLOSED, 0, ""
        self._backoff.reset()


class Breakers:
    """One for the broker, and one for each stream that ever failed, by queue."""

    __slots__ = ("_make", "broker", "streams")

    def __init__(self, make: Callable[[], Backoff]) -> None:
        self._make = make
        self.broker = Breaker(make())
        self.streams: dict[str, Breaker] = {}

    def stream_failed(self, queue: str, now: float, reason: str) -> bool:
        """Note a failure of one stream; True if that opened its breaker."""
        return self.streams.setdefault(queue, Breaker(self._make(), with_neighbour=True)).failed(now, reason)

    def stream_passed(self, queue: str) -> bool:
        """Note that a trial of one stream was answered well; True when it is closed again, and forgotten."""
        breaker = self.streams.get(queue)
        if breaker is None or not breaker.passed():
            return False
        del self.streams[queue]
        return True

    @property
    def closed_queues(self) -> tuple[str, ...]:
        """The queues that an ordinary claim passes over."""
        return tuple(self.streams)

    def due(self, now: float) -> list[str]:
        """The queues whose stream is to be tried now."""
        return [queue for queue, b in self.streams.items() if b.state is State.TRIAL or b.retry_at <= now]

    def retry_in_s(self, now: float) -> float | None:
        """Seconds until the next stream is to be tried; None when all are well."""
        times = [0.0 if b.state is State.TRIAL else b.retry_at - now for b in self.streams.values()]
        return max(0.0, min(times)) if times else None
