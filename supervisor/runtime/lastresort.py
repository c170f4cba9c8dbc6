"""The child's own last resort: when a drain does not end in time, write every stack and leave.

A C thread of faulthandler's does it, so it works with a blocked loop, a held lock, or a call stuck in C.
"""

from __future__ import annotations

import faulthandler
import logging

from .logfile import LogFile

log = logging.getLogger("pfsup.child")


class LastResort:
    """Armed while draining, and never disarmed: the process ends, one way or the other. Stacks go to the log."""

    __slots__ = ("_log_file", "fires_in_s")

    def __init__(self, log_file: LogFile) -> None:
        self._log_file = log_file
        self.fires_in_s: float | None = None

    def __repr__(self) -> str:
        return f"<LastResort fires_in_s={self.fires_in_s}>"

    def arm(self, within_s: float) -> None:
        """Leave by force one second before `within_s` is over (for short budgets: at half of it)."""
        self.fires_in_s = max(within_s - 1.0, within_s / 2, 0.001)
        try:
            faulthandler.dump_traceback_later(self.fires_in_s, exit=True, file=self._log_file.stream)
        except (OSError, ValueError, AttributeError):
            log.warning("there is no last resort: the log has no descriptor to write stacks to")
