"""The proof for the product: what was asked against how its rows ended, the provider's log, and where workers died."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .boundaries import Boundary
from .kills import Kill
from .orders import DOMAINS

ENDS = ("succeeded", "failed", "cancelled", "unknown")
# A worker that died here with an outside call left a row of which nobody can say whether the call was made.
UNPROVED = (Boundary.EFFECT_BEGUN, Boundary.EFFECT_DONE)


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that was asked of the product, and its row's status; None where the row is gone."""

    domain: str
    id: str
    status: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductProof:
    """Offences by kind, and counts by domain.

    `open`: rows that have not come to an end. `repeated`: provider calls for one (row, index) more often than once.
    `hollow`: succeeded without a result. `misplaced`: a worker died with an unproved call, and the row is not unknown.
    """

    counts: Mapping[str, Mapping[str, int]]
    open: tuple[str, ...]
    repeated: tuple[str, ...]
    hollow: tuple[str, ...]
    misplaced: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every row came to the end that it should, and nothing outside was asked for twice."""
        return not (self.open or self.repeated or self.hollow or self.misplaced)


def prove_product(
    asked: Iterable[Asked], *, calls: Mapping[tuple[str, int], int], hollow: Iterable[str], kills: Iterable[Kill]
) -> ProductProof:
    """Compare the witnesses. Pure."""
    rows = list(asked)
    status = {(row.domain, row.id): row.status for row in rows}
    unproved = [kill for kill in kills if kill.boundary in UNPROVED and kill.actor in DOMAINS]
    return ProductProof(
        counts={domain: Counter(str(row.status) for row in rows if row.domain == domain) for domain in DOMAINS},
        open=tuple(f"{row.domain} {row.id} is {row.status}" for row in rows if row.status not in ENDS),
        repeated=tuple(f"{row} index {index}: {count} calls" for (row, index), count in calls.items() if count > 1),
        hollow=tuple(hollow),
        misplaced=tuple(
            f"{kill.actor} {kill.subject} is {ended}, its worker died at {kill.boundary}"
            for kill in unproved
            if (ended := status.get((kill.actor, kill.subject))) != "unknown"
        ),
    )
