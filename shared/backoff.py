"""Exponential back-off with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Delays that grow from `base_s` by `factor` up to `cap_s`, each spread by ±`jitter` (a share, 0.2 = 20 %).

    Pass the process's own `rng`: one made before a fork yields the same numbers in every child, and their retries
    would march in step.
    """

    __slots__ = ("_base_s", "_cap_s", "_factor", "_jitter", "_rng", "failures")

    def __init__(
        self, base_s: float, cap_s: float, *, factor: float = 2.0, jitter: float = 0.2, rng: random.Random | None = None
    ) -> None:
        self._base_s = base_s
        self._cap_s = cap_s
        self._factor = factor
        self._jitter = jitter
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries, guards nothing
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Backoff failures={self.failures} base_s={self._base_s} cap_s={self._cap_s}>"

    def next_s(self) -> float:
        """The delay before the next try, in seconds; counts one more failure. Jitter never passes the cap."""
        # The exponent is bounded: 2.0 ** 1100 overflows, and a dependency can be away for days.
        grown = min(self._cap_s, self._base_s * self._factor ** min(self.failures, 64))
        self.failures += 1
        return min(self._cap_s, grown * self._rng.uniform(1 - self._jitter, 1 + self._jitter))

    def reset(self) -> None:
        """Forget the failures: the next delay is the base again."""
        self.failures = 0
