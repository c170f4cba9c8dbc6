"""This process's log: configured once, opened anew on demand (new file first, then the swap)."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from ...config.values import Log
from ...shared.log import LOGGER_NAME, SteadyHandler, configure


class LogFile:
    """Owns the handler of this process. `errors` counts lost lines over every reopening."""

    __slots__ = ("_handler", "_log", "_lost_before", "_who")

    def __init__(self, log: Log, *, who: str) -> None:
        self._log = log
        self._who = who
        self._lost_before = 0
        self._handler = self._configure()

    def __repr__(self) -> str:
        return f"<LogFile who={self._who} file={self._log.file!r} errors={self.errors}>"

    @property
    def stream(self) -> TextIO:
        """Where lines go now."""
        return self._handler.stream

    @property
    def errors(self) -> int:
        """Lines that could not be written."""
        return self._lost_before + self._handler.errors

    def fileno(self) -> int:
        """The descriptor behind the stream; -1 if it has none."""
        try:
            return self.stream.fileno()
        except (OSError, ValueError, AttributeError):
            return -1

    def reopen(self) -> None:
        """Open the file anew, after a rotation."""
        self._lost_before = self.errors
        self._handler = self._configure()

    def _configure(self) -> SteadyHandler:
        before = [h for h in logging.getLogger(LOGGER_NAME).handlers if isinstance(h, SteadyHandler)]
        handler = configure(self._log, who=self._who)
        for old in before:
            _close(old)
        return handler


def _close(handler: SteadyHandler) -> None:
    handler.close()
    if handler.stream in (sys.stderr, sys.stdout):
        return
    try:
        handler.stream.close()
    except OSError:
        pass  # a full disk: what was buffered is lost, and was counted when it could not be written
