"""A bench's result, for people and as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .figures import Side, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Each run's figures in `unit`, in the order they ran; the verdicts; and what is told without being judged."""

    name: str
    unit: str
    order: Sequence[Side]
    runs: Sequence[Mapping[str, float]]
    verdicts: Sequence[Verdict]
    information: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def met(self) -> bool:
        """Whether every target is kept."""
        return all(verdict.met for verdict in self.verdicts)

    def as_json(self, environment: Mapping[str, object]) -> dict[str, object]:
        """Everything as plain values, rounded to three digits after the point."""
        return rounded(
            {
                "schema": 1,
                "bench": self.name,
                "environment": dict(environment),
                "unit": self.unit,
                "repetitions": len(self.order) // 4,
                "runs": [{"side": side, **run} for side, run in zip(self.order, self.runs, strict=True)],
                "verdicts": [verdict.as_json() for verdict in self.verdicts],
                "information": dict(self.information),
                "met": self.met,
            }
        )

    def as_lines(self, environment: Mapping[str, object]) -> list[str]:
        """For a terminal: the environment, a line a run, what is told, and the verdicts."""
        said = " · ".join(f"{name} {value}" for name, value in environment.items())
        lines = [f"{self.name}: {len(self.order) // 4} x A B B A, {self.unit}", said, ""]
        for side, run in zip(self.order, self.runs, strict=True):
            lines.append(f"  {side}  " + "  ".join(f"{name} {value:>10,.3f}" for name, value in run.items()))
        lines += ["", *(f"  {name}: {plain(value)}" for name, value in self.information.items()), ""]
        return lines + [verdict_line(verdict) for verdict in self.verdicts]


def verdict_line(verdict: Verdict) -> str:
    """The verdict in one line."""
    low, high = verdict.spread
    each = " ".join(f"{pair.ratio:.2f}" for pair in verdict.pairs)
    return (
        f"{'ok    ' if verdict.met else 'MISSED'} {verdict.target.figure}: {verdict.ratio:.2f} x"
        f" (spread {low:.2f} to {high:.2f}; pairs {each}), wanted {verdict.target.text}"
    )


def plain(value: object) -> str:
    """A value, or a mapping of values, as short text."""
    match value:
        case dict():
            items = cast("dict[str, object]", value)
            return "  ".join(f"{name} {plain(one)}" for name, one in items.items())
        case float():
            return f"{value:,.1f}"
        case _:
            return str(value)


def rounded(value: Any) -> Any:
    """The same value with every float rounded to three digits after the point."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: rounded(one) for name, one in cast("dict[str, object]", value).items()}
        case list():
            return [rounded(one) for one in cast("list[object]", value)]
        case _:
            return value
