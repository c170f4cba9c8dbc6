"""Log lines: one line an event, safe to read, lost rather than in the way."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.config.values import Log
from pfsup.shared.log import LOGGER_NAME, Repeats, SteadyHandler, TextFormatter, configure
from pfsup.shared.text import printable

LOGGER = logging.getLogger(LOGGER_NAME)


@pytest.fixture(autouse=True)
def _clean_logger() -> Iterator[None]:
    yield
    for handler in LOGGER.handlers[:]:
        LOGGER.removeHandler(handler)
    LOGGER.propagate = True
    LOGGER.setLevel(logging.NOTSET)


@given(st.text(max_size=800))
def test_printable_text_is_one_line_without_controls(text: str) -> None:
    """Whatever a row holds, a terminal is not rewritten and a log line not forged."""
    safe = printable(text)
    assert safe.isprintable()
    assert len(safe) <= 500
    assert len(safe.splitlines()) <= 1


def test_printable_leaves_ordinary_text_alone() -> None:
    """Umlauts and Chinese are not controls."""
    assert printable("Größe 图片 ok") == "Größe 图片 ok"
    assert printable("a\x1b[2J\nb") == "a\\x1b[2J\\nb"


def test_text_line_names_level_process_and_event(tmp_path: Path) -> None:
    """Time first, then what a person greps for."""
    file = tmp_path / "log"
    configure(Log(file=str(file)), who="dispatch")
    LOGGER.info("sent %d rows", 5)
    LOGGER.debug("an empty pass is silent")
    (line,) = file.read_text().splitlines()
    assert line.split(" ", 1)[1].startswith("INFO dispatch[")
    assert line.endswith("] sent 5 rows")


def test_json_line_holds_the_trace_on_the_same_line(tmp_path: Path) -> None:
    """A collector reads one event a line, exceptions too."""
    file = tmp_path / "log"
    configure(Log(file=str(file), format="json"), who="parent")
    try:
        raise ValueError("bad\x1b[0m")
    except ValueError:
        LOGGER.exception("it broke")
    (line,) = file.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["who"], entry["level"], entry["text"]) == ("parent", "error", "it broke")
    assert "ValueError" in entry["trace"]


def test_text_trace_is_escaped_and_indented(tmp_path: Path) -> None:
    """A traceback carries foreign text as well."""
    file = tmp_path / "log"
    configure(Log(file=str(file)), who="parent")
    try:
        raise ValueError("bad\x1b[0m")
    except ValueError:
        LOGGER.exception("it broke")
    assert "\x1b" not in file.read_text()
    assert "    ValueError: bad\\x1b[0m" in file.read_text()


def test_full_disk_loses_lines_and_counts_them() -> None:
    """Logging never raises into the work and never writes to the stream that failed."""
    handler = configure(Log(file="/dev/full"), who="parent")
    LOGGER.info("one")
    LOGGER.info("two")
    assert handler.errors == 2
    LOGGER.removeHandler(handler)


@pytest.mark.parametrize("text", ["a short line", "多" * 3000])
def test_a_pipe_that_nobody_empties_loses_lines_and_holds_nobody_up(text: str) -> None:
    """A write that waits for the reader would stop the loop of whoever logs, supervisor included."""
    reader, writer = os.pipe()
    with open(reader, "rb"), open(writer, "w", encoding="utf-8") as pipe:  # noqa: PTH123 - descriptors
        handler = SteadyHandler(pipe)
        handler.setFormatter(TextFormatter("parent"))
        record = LOGGER.makeRecord(LOGGER_NAME, logging.INFO, __file__, 1, text, (), None)
        while handler.errors < 2:
            handler.handle(record)
        assert len(os.read(reader, 1 << 20)) >= 4096
        lost = handler.errors
        handler.handle(record)
        assert handler.errors == lost
        assert os.read(reader, 1 << 20).decode().endswith(f"{text}\n")


def test_a_json_trace_with_a_lone_surrogate_is_a_line_all_the_same(tmp_path: Path) -> None:
    """File names and other programs' words hold them; the writer of JSON refuses them."""
    file = tmp_path / "log"
    handler = configure(Log(file=str(file), format="json"), who="parent")
    try:
        raise ValueError("\udcff")
    except ValueError:
        LOGGER.exception("it broke")
    assert handler.errors == 0
    assert "\\udcff" in json.loads(file.read_text())["trace"]


def test_unwritable_log_file_falls_back_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong path costs one warning, not the start."""
    configure(Log(file=str(tmp_path / "missing" / "log")), who="parent")
    assert "cannot write the log to" in capsys.readouterr().err


def test_same_failure_is_one_line_and_a_count(tmp_path: Path) -> None:
    """A broker that is away for an hour writes two lines, not an hour of them."""
    file = tmp_path / "log"
    configure(Log(file=str(file)), who="dispatch")
    repeats = Repeats(LOGGER)
    for _ in range(100):
        repeats.say("cannot reach the broker")
    repeats.over("the broker answers")
    repeats.over("the broker answers")
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    assert "99 more of: cannot reach the broker" in lines[1]


def test_changed_failure_tells_how_often_the_last_was_repeated(tmp_path: Path) -> None:
    """Nothing that was counted is forgotten."""
    file = tmp_path / "log"
    configure(Log(file=str(file)), who="dispatch")
    repeats = Repeats(LOGGER)
    for text in ("refused", "refused", "timeout"):
        repeats.say(text)
    assert [line.split("] ")[1] for line in file.read_text().splitlines()] == [
        "refused",
        "refused (repeated 1 times)",
        "timeout",
    ]
