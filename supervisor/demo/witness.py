"""The proof. Two lists that pfsup does not write are compared: what the shop committed, and what was executed.

A plain order is executed exactly once. A delivery job has a version that each wish raises, and the work reads the
newest: a wish is met by any run that saw its version or a later one, and no run of one envelope may count twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Commit:
    """A row of the shop's own table of commits."""

    id: int
    aggregate: str
    version: int
    keyed: bool


@dataclass(frozen=True, slots=True)
class Execution:
    """A row that a work function wrote in the transaction that settled."""

    aggregate: str
    version: int
    dispatch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """`lost`: ids of commits that no execution meets. `twice`: what was executed more than once, each with the count.
    `uncommitted`: aggregates executed although their order was never committed.
    """

    committed: int
    executed: int
    unknown: int
    lost: tuple[int, ...]
    twice: tuple[tuple[str, int], ...]
    uncommitted: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, nothing done twice, nothing done that was rolled back."""
        return not (self.lost or self.twice or self.uncommitted)


def prove(commits: Iterable[Commit], executions: Iterable[Execution], *, unknown: Collection[str] = ()) -> Proof:
    """Compare the two witnesses. A pure function: it trusts nothing but what it is given.

    `unknown`: aggregates whose worker died within an outside call. Such an order is not lost: a person decides. One
    that was executed all the same counts as done twice: nobody may run it again.
    """
    wanted, done = list(commits), list(executions)
    newest_done, newest_wanted = newest(done), newest(wanted)
    keyed = {commit.aggregate for commit in wanted if commit.keyed}
    runs = Counter(run_of(execution, keyed) for execution in done)
    return Proof(
        committed=len(wanted),
        executed=len(done),
        unknown=sum(commit.aggregate in unknown for commit in wanted),
        lost=tuple(
            commit.id
            for commit in wanted
            if newest_done.get(commit.aggregate, 0) < commit.version and commit.aggregate not in unknown
        ),
        twice=tuple(sorted((run, count) for run, count in runs.items() if count > 1 or run in unknown)),
        uncommitted=tuple(sorted({e.aggregate for e in done if newest_wanted.get(e.aggregate, 0) < e.version})),
    )


def newest(rows: Iterable[Commit | Execution]) -> dict[str, int]:
    """The highest version of each aggregate."""
    found: dict[str, int] = {}
    for row in rows:
        found[row.aggregate] = max(row.version, found.get(row.aggregate, 0))
    return found


def run_of(execution: Execution, keyed: set[str]) -> str:
    """What may be executed only once: the order itself, or one envelope of a delivery job."""
    if execution.aggregate in keyed:
        return f"{execution.aggregate} (dispatch {execution.dispatch_id})"
    return execution.aggregate
