"""How a child ended, and what that means for its next start."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from ...config.errors import EXIT_CONFIG, EXIT_OK, EXIT_TRY_LATER


class ExitKind(StrEnum):
    """The classes of an end."""

    OK = "ok"
    CONFIG = "config"  # 78: it will not get better by itself
    TEMPFAIL = "tempfail"  # 75: try again later, not a fault
    CRASH = "crash"
    KILLED_BY_US = "killed-by-us"
    OOM_LIKE = "oom-like"  # signal 9 that we did not send
    NO_FORK = "no-fork"  # the system refused a new process


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One end: `code` or `signal` as waitid reports it, why we ended it (or ""), seconds alive, wall time."""

    kind: ExitKind
    code: int | None = None
    signal: int | None = None
    why: str = ""
    uptime_s: float = 0.0
    at: float = 0.0

    @property
    def by_us(self) -> bool:
        """True if the parent sent the KILL."""
        return self.kind is ExitKind.KILLED_BY_US

    @property
    def text(self) -> str:
        """One line for people."""
        match self.kind:
            case ExitKind.NO_FORK:
                return f"cannot fork: {self.why}"
            case ExitKind.KILLED_BY_US:
                return f"killed by us: {self.why}"
            case ExitKind.OOM_LIKE:
                return "signal 9, not by us (out of memory?)"
            case ExitKind.OK | ExitKind.CONFIG | ExitKind.TEMPFAIL | ExitKind.CRASH:
                return f"signal {self.signal}" if self.signal is not None else f"exit {self.code}"


def classify(*, code: int | None, signum: int | None, killed_by_us: str) -> ExitKind:
    """The class of an end by exit `code` or signal `signum`; `killed_by_us` is our reason for a KILL, or ""."""
    match code, signum:
        case _, signal.SIGKILL if killed_by_us:
            return ExitKind.KILLED_BY_US
        case _, signal.SIGKILL:
            return ExitKind.OOM_LIKE
        case 0, _:
            return ExitKind.OK
        case _ if code == EXIT_CONFIG:
            return ExitKind.CONFIG
        case _ if code == EXIT_TRY_LATER:
            return ExitKind.TEMPFAIL
        case _:
            return ExitKind.CRASH


def needed_force(exit_: Exit, *, bye: int | None) -> bool:
    """True if a drain did not end by itself: killed, or ended by its own last resort (an exit that its bye, the code
    it announced, does not tell).
    """
    return exit_.by_us or exit_.code not in (EXIT_OK, bye)
