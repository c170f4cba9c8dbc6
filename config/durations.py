"""Durations as people write them: a number and a unit."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
WANTED = 'a duration with a unit (ms, s, m, h, d), such as "5s"'


def seconds(text: str) -> float:
    """The seconds that `text` says ("500ms", "25s", "1.5h"). Raises ValueError for any other form."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read a duration: wanted {WANTED}")
    number, unit = match.groups()
    # Dividing keeps 100ms at exactly 0.1; a product with 0.001 does not.
    return float(number) / 1000 if unit == "ms" else float(number) * _UNITS[unit]


def text(seconds_: float) -> str:
    """The duration in the largest unit that gives a whole number; `seconds(text(s))` is `s` to the microsecond."""
    for unit in ("d", "h", "m", "s"):
        size = _UNITS[unit]
        if seconds_ >= size and math.isclose(seconds_ % size, 0.0, abs_tol=1e-9):
            return f"{round(seconds_ / size)}{unit}"
    if seconds_ == 0:
        return "0s"
    number, unit = (seconds_, "s") if seconds_ > 1 else (seconds_ * 1000, "ms")
    return f"{number:.6f}".rstrip("0").rstrip(".") + unit
