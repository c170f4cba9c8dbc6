"""Logging: one line an event, as text or JSON, to standard error or an appended file. A full disk never stops work."""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import orjson

from ..config.values import Log
from .text import printable

LOGGER_NAME = "pfsup"


class TextFormatter(logging.Formatter):
    """`2026-11-30T12:00:00.123Z INFO dispatch[4711] text`; a traceback follows as escaped, indented lines."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_stamp(record)} {record.levelname} {self._who}[{record.process}] {_message(record)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {printable(part, limit=1000)}" for part in trace.splitlines())
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, who, pid, text and, after an exception, trace."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": _stamp(record),
            "level": record.levelname.lower(),
            "who": self._who,
            "pid": record.process,
            "text": _message(record),
        }
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            entry["trace"] = trace.encode("utf-8", "backslashreplace").decode()  # orjson refuses lone surrogates
        return orjson.dumps(entry, option=orjson.OPT_NON_STR_KEYS).decode()


class SteadyHandler(logging.StreamHandler[TextIO]):
    """Writes and flushes each line; when the disk is full or the reader is gone it drops the line and counts it.

    So it does when a pipe's reader sleeps or a terminal was stopped with Ctrl-S: a write that waits would stop the loop
    of whoever logs, and no signal ends that wait.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.errors = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, in parts that a pipe takes whole (PIPE_BUF), or count it as lost."""
        try:
            line = self.format(record) + self.terminator
            for part in _parts(line):
                _fail_if_full(self.stream)
                self.stream.write(part)
                self.flush()
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Count the lost line. logging's own answer is nine lines of traceback on the stream that just failed."""
        self.errors += 1


def configure(log: Log, *, who: str) -> SteadyHandler:
    """Make every pfsup logger of this process write as `[log]` says, marked with `who`. Replaces an earlier call.

    Returns the handler; its `errors` counts the lines that were lost. A log file that cannot be opened is answered
    by standard error and one warning, never by a failed start.
    """
    stream, problem = _open(log.file)
    handler = SteadyHandler(stream)
    handler.setFormatter(JsonFormatter(who) if log.format == "json" else TextFormatter(who))
    logger = logging.getLogger(LOGGER_NAME)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(log.level.upper())
    logger.propagate = False
    if problem:
        logger.warning(problem)
    return handler


class Repeats:
    """The same failure, again and again, is one line at first, then a count when it changes or ends.

    A broker that is away for an hour must not write an hour of lines.
    """

    __slots__ = ("_count", "_last", "_logger")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last: str | None = None
        self._count = 0

    def say(self, text: str, *, level: int = logging.WARNING) -> None:
        """Log `text`, unless it is what was said last: then only count it."""
        if text == self._last:
            self._count += 1
            return
        self._flush()
        self._last = text
        self._logger.log(level, text)

    def over(self, text: str, *, level: int = logging.INFO) -> None:
        """Say that the failure has ended, with how often it was repeated. Silent when nothing had failed."""
        if self._last is None:
            return
        self._logger.log(level, "%s (after %d more of: %s)", text, self._count, self._last)
        self._last, self._count = None, 0

    def _flush(self) -> None:
        if self._count:
            self._logger.warning("%s (repeated %d times)", self._last, self._count)
        self._count = 0


def _parts(line: str) -> list[str]:
    """Cut so that each part is at most PIPE_BUF (4096) bytes of UTF-8: poll() promises room for no more."""
    size = select.PIPE_BUF // 4 if not line.isascii() else select.PIPE_BUF
    return [line[at : at + size] for at in range(0, len(line), size)]


def _fail_if_full(stream: TextIO) -> None:
    """Raise BlockingIOError when a write would wait. A regular file is always ready, and so is a stream in memory."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):
        return  # it has no descriptor
    if not poll.poll(0):
        raise BlockingIOError


def _open(path: str) -> tuple[TextIO, str | None]:
    if not path:
        return sys.stderr, None
    try:
        # Append mode: writers of several processes never overwrite each other's lines.
        return Path(path).open("a", encoding="utf-8", errors="backslashreplace"), None
    except OSError as error:
        return sys.stderr, f"cannot write the log to {path}: {error.strerror}; lines go to standard error"


def _stamp(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    text: Callable[[], str] = record.getMessage
    return printable(text(), limit=4000)
