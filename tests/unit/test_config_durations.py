"""Durations: a number and a unit, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.config import durations


@pytest.mark.parametrize(
    ("text", "wanted_s"),
    [("500ms", 0.5), ("100ms", 0.1), ("25s", 25.0), ("5m", 300.0), ("1.5h", 5400.0), ("7d", 604800.0), ("0s", 0.0)],
)
def test_duration_reads_each_unit(text: str, wanted_s: float) -> None:
    assert durations.seconds(text) == wanted_s


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 s", " 5s", "5s ", "-5s", "5S", "1h30m", "1e3s", "٥s", "5s\n", ".5s", "infs"]
)
def test_duration_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read a duration"):
        durations.seconds(text)


@given(st.integers(min_value=0, max_value=3650 * 86_400_000))
def test_duration_in_whole_milliseconds_survives_being_written_and_read(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert durations.seconds(durations.text(seconds)) == pytest.approx(seconds, abs=1e-6)


@given(st.text())
def test_duration_reader_gives_seconds_or_value_error_for_any_text(text: str) -> None:
    try:
        assert durations.seconds(text) >= 0
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [(3600.0, "1h"), (90.0, "90s"), (0.5, "500ms"), (1.5, "1.5s"), (604800.0, "7d"), (0.001, "1ms")],
)
def test_duration_is_written_in_its_largest_whole_unit(seconds: float, wanted: str) -> None:
    assert durations.text(seconds) == wanted
