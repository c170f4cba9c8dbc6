"""Percentiles are values that were seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.supervisor.demo.waits import percentile, percentiles


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (95, 10), (99, 10), (10, 1), (11, 2), (0, 1), (100, 10)])
def test_percentile_is_the_nearest_rank(percent: float, expected: float):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.floats(0, 100))
def test_percentile_is_one_of_the_values_and_covers_its_share(values: list[float], percent: float):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_percentiles_name_p50_p95_p99_and_max():
    assert percentiles([float(n) for n in range(1, 101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


def test_percentiles_of_nothing_are_zero():
    assert percentiles([]) == {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
