"""Percentiles by nearest rank: every figure is one that was seen, never one in between."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of `values` do not exceed. ValueError when empty."""
    if not values:
        raise ValueError("cannot take a percentile: there are no values")
    ranked = sorted(values)
    return ranked[max(0, ceil(len(ranked) * percent / 100) - 1)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and max of `values`; all 0 when there are none."""
    if not values:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}
    named = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    return {**named, "max": max(values)}
