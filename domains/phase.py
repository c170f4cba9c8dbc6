"""What a domain is made of: kinds of candidates, each found, read and judged in its own way; and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

import orjson
from psycopg.types.json import Jsonb

from ..shared.db.queries import Queries
from .decisions import Limits, Run, Verdict
from .looks import Looks
from .session import Row


class Evidence(Protocol):
    """What a domain knows of one candidate when it decides: a frozen dataclass of named values, never a whole row."""

    @property
    def status(self) -> str: ...
    @property
    def run(self) -> Run | None: ...
    @property
    def checks(self) -> int: ...
    @property
    def recoveries(self) -> int: ...


E = TypeVar("E", bound=Evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Generic[E]):
    """One kind of candidate of a domain: where it is found, what is read under its lock, and how it is judged.

    `find` and `recheck` name statements. `repairs` are run under the lock, before the evidence is read again.
    `reads_again`: without repairs too, because the evidence lies in other tables as well: the statement that takes the
    lock sees those as they were before it had it, and a call may have begun in between.
    `takes_rest`: it works with what earlier phases left of the batch, else with a batch of its own.
    """

    find: str
    recheck: str
    evidence: Callable[[Row, Run | None], E]
    decide: Callable[[E, Limits], Verdict]
    repairs: tuple[str, ...] = ()
    reads_again: bool = False
    takes_rest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whose cycle it is: the domain's name, the actor it owns, its limits, and the statements it runs."""

    domain: str
    actor: str
    limits: Limits
    batch_size: int
    queries: Queries  # the domain's own
    shared: Queries  # recovery.sql
    observes: bool = False  # find, read and decide; lock and write nothing

    def params(self, **more: Any) -> dict[str, Any]:
        """What every statement gets, and `more`."""
        known = {"domain": self.domain, "actor": self.actor, "stale_s": self.limits.stale_after_s}
        return known | more


def run_of(row: Row, looks: Looks) -> Run | None:
    """The live envelope in a re-read's columns (`run_id`, `run_status`, …), None where there is none."""
    if row.get("run_id") is None:
        return None
    is_lost = row["run_status"] == "running" and not row["run_alive"]
    return Run(
        id=row["run_id"],
        status=row["run_status"],
        token=row["run_token"],
        expires_at=row["run_expires_at"],
        alive=row["run_alive"],
        effect=row["run_effect"],
        on_lost=row["run_on_lost"],
        last_error=row["run_error"],
        confirmed=is_lost and looks.twice(row["run_id"], (row["run_token"], row["run_expires_at"])),
    )


def plain(evidence: Any) -> Jsonb:
    """Evidence as the ledger and the audit keep it: its named values, without the run's token (it is a right)."""
    fields: dict[str, Any] = asdict(evidence)
    if fields.get("run") is not None:
        fields["run"] = {name: value for name, value in fields["run"].items() if name != "token"}
    return Jsonb(orjson.loads(orjson.dumps(fields, default=str)))
