"""What is made of the measurements: pairs of an A B B A run, ratios, their spread, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Side = Literal["ours", "bare"]


def sequence(repeat: int) -> list[Side]:
    """The order of the runs: A B B A `repeat` times, so that a slow drift of the machine cancels itself."""
    return ["ours", "bare", "bare", "ours"] * repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs side by side in time."""

    ours: float
    bare: float

    @property
    def ratio(self) -> float:
        """Ours by bare. Infinite when the bare one is 0."""
        return self.ours / self.bare if self.bare else float("inf")


def pairs(order: Sequence[Side], values: Sequence[float]) -> list[Pair]:
    """Neighbours of an A B B A sequence as pairs. ValueError when two neighbours are of the same side."""
    if len(order) != len(values) or len(order) % 2:
        raise ValueError(f"cannot pair {len(values)} values of {len(order)} runs")
    found: list[Pair] = []
    for at in range(0, len(order), 2):
        sides = dict(zip(order[at : at + 2], values[at : at + 2], strict=True))
        if len(sides) != 2:
            raise ValueError(f"cannot pair runs {at} and {at + 1}: both are {order[at]}")
        found.append(Pair(ours=sides["ours"], bare=sides["bare"]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the ratio ours / bare has to keep: at most (a time) or at least (a rate) `limit`."""

    figure: str
    limit: float
    at_most: bool

    def met(self, ratio: float) -> bool:
        """Whether `ratio` keeps the target; the limit itself does."""
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    @property
    def text(self) -> str:
        """For people: `<= 2 x`."""
        return f"{'<=' if self.at_most else '>='} {self.limit:g} x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The ratio of all pairs against its target. `spread` is the lowest and the highest ratio."""

    target: Target
    pairs: tuple[Pair, ...]

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest ratio of a pair."""
        ratios = [pair.ratio for pair in self.pairs]
        return min(ratios), max(ratios)

    @property
    def met(self) -> bool:
        """Whether the median keeps the target."""
        return self.target.met(self.ratio)

    def as_json(self) -> dict[str, object]:
        """Everything as plain values."""
        return {
            "figure": self.target.figure,
            "pairs": [{"ours": p.ours, "bare": p.bare, "ratio": p.ratio} for p in self.pairs],
            "ratio": self.ratio,
            "spread": list(self.spread),
            "target": self.target.text,
            "met": self.met,
        }


def judge(target: Target, order: Sequence[Side], values: Sequence[float]) -> Verdict:
    """The verdict on the runs of one A B B A sequence."""
    return Verdict(target=target, pairs=tuple(pairs(order, values)))
