"""How a function ends its run otherwise than by returning, and how an end is told to settle()."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...config.errors import PfsupError
from ..text import printable

OutcomeName = Literal["consumed", "retry", "snooze", "rejected", "dead", "unknown"]


class RunEnded(Exception):
    """Raised by a worker's function to end its run. Not a failure of pfsup's."""


class Retry(RunEnded):
    """This run failed: again after `after_s` seconds, else after the actor's back-off. Charged as one attempt.

    At max_attempts the row is dead; while an effect is begun and unproved it is unknown.
    """

    def __init__(self, after_s: float | None = None, reason: str = "") -> None:
        self.after_s = after_s
        self.reason = reason
        super().__init__(reason or "retry")


class Snooze(RunEnded):
    """Not now: again after `after_s` seconds. Charged nothing; for capacity, rate limits and deploys."""

    def __init__(self, after_s: float, reason: str = "") -> None:
        self.after_s = after_s
        self.reason = reason
        super().__init__(reason or "snooze")


class Reject(RunEnded):
    """A final no: the row ends `rejected`, its delivery key is free again."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Unknown(RunEnded):
    """Nobody can prove whether the outside effect happened: the row ends `unknown`, a person decides."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Late(PfsupError):
    """The row is no longer this run's: nothing was written, and the transaction that asked is lost.

    `claimed`: what was refused carried the run's result, or said that an outside call was made.
    """

    def __init__(self, text: str, *, claimed: bool = False) -> None:
        self.claimed = claimed
        super().__init__(text)


class Busy(PfsupError):
    """Somebody locks the row for longer than is waited for; the message must be delivered again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What settle() is called with. `retry_in_s` None: the actor's back-off decides."""

    outcome: OutcomeName
    error: str | None = None
    retry_in_s: float | None = None

    @property
    def is_claim(self) -> bool:
        """True when the run claims something that a person must know if it comes too late."""
        return self.outcome not in ("retry", "snooze")


def settlement_of(error: BaseException | None) -> Settlement:
    """The settlement for a function that returned (None) or raised. An exception that is not ours is a retry."""
    match error:
        case None:
            return Settlement(outcome="consumed")
        case Retry():
            return Settlement(outcome="retry", error=_cleaned(error.reason), retry_in_s=_wait(error.after_s))
        case Snooze():
            return Settlement(outcome="snooze", error=_cleaned(error.reason), retry_in_s=_wait(error.after_s))
        case Reject():
            return Settlement(outcome="rejected", error=_cleaned(error.reason))
        case Unknown():
            return Settlement(outcome="unknown", error=_cleaned(error.reason))
        case _:
            return Settlement(outcome="retry", error=_cleaned(f"{type(error).__name__}: {_said(error)}"))


def _wait(after_s: float | None) -> float | None:
    """A wait that settle() takes: 0 to 366 days. A wrong figure must not cost the run its end."""
    if after_s is None or math.isnan(after_s):
        return None
    return min(max(0.0, float(after_s)), 366 * 86400.0)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not cost the run its end
        return "(its text cannot be read)"


def _cleaned(text: object) -> str | None:
    # NUL and lone surrogates do not reach PostgreSQL: psycopg refuses them before the server could clean them.
    return printable(str(text), limit=2000) if text else None
