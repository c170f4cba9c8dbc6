"""Back-off grows, is spread, and never passes its cap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.shared.backoff import Backoff


def test_delays_double_up_to_the_cap_and_reset() -> None:
    """Without jitter the ladder is exact."""
    backoff = Backoff(0.5, 30, jitter=0)
    assert [backoff.next_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert repr(backoff) == "<Backoff failures=8 base_s=0.5 cap_s=30>"
    backoff.reset()
    assert backoff.next_s() == pytest.approx(0.5)


@given(st.integers(0, 3000), st.floats(0.001, 10), st.floats(10, 1e5), st.floats(0, 0.9), st.integers())
def test_delay_is_always_between_zero_and_the_cap(
    failures: int, base_s: float, cap_s: float, jitter: float, seed: int
) -> None:
    """Also after thousands of failures, when the power would overflow."""
    backoff = Backoff(base_s, cap_s, jitter=jitter, rng=random.Random(seed))
    backoff.failures = failures
    assert 0 < backoff.next_s() <= cap_s


def test_two_processes_with_own_generators_do_not_march_in_step() -> None:
    """Same ladder, different seeds: different delays."""
    one, two = Backoff(1, 60, rng=random.Random(1)), Backoff(1, 60, rng=random.Random(2))
    assert [one.next_s() for _ in range(4)] != [two.next_s() for _ in range(4)]
