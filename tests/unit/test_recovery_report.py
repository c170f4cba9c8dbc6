"""Report: how much a cycle settled, and how long what waits will take."""

from __future__ import annotations

from collections import Counter

import pytest
from pfsup.domains.decisions import Decision
from pfsup.domains.report import Report


def test_effective_ratio_is_the_share_that_was_settled():
    decisions = Counter({Decision.REDISPATCH: 2, Decision.OUTCOME_UNKNOWN: 1, Decision.STILL_RUNNING: 5})
    assert Report(examined=8, decisions=decisions).effective_ratio == pytest.approx(3 / 8)
    assert Report().effective_ratio == 1.0


def test_time_to_drain_is_what_waits_over_what_a_cycle_settles():
    """B/T of seed 000, section 7: a cycle takes the interval, or its own time when that is longer."""
    decisions = Counter({Decision.REDISPATCH: 25})
    assert Report(examined=25, decisions=decisions, waiting=1000).drain_s(10) == pytest.approx(400)
    assert Report(examined=25, decisions=decisions, waiting=1000, duration_s=30).drain_s(10) == pytest.approx(1200)


def test_time_to_drain_is_unknown_while_nothing_gets_settled():
    assert Report(examined=5, decisions=Counter({Decision.STILL_RUNNING: 5}), waiting=5).drain_s(10) is None
    assert Report().drain_s(10) == 0.0


def test_figures_name_every_decision():
    figures = Report().figures(10)
    assert {decision.value for decision in Decision} <= set(figures)
