"""What the demo reads: the two witnesses for the proof, pfsup's tables for the display only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import class_row

from ...shared.db.queries import Queries
from .kills import Kill
from .product_proof import Asked, ProductProof, prove_product
from .provider import received
from .waits import percentiles
from .witness import Commit, Execution, Proof, prove

ALL_S = 10 * 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the envelopes are at one moment, as counts."""

    committed: int
    executed: int
    envelopes: int
    pending: int
    sent: int
    waiting: int
    running: int
    consumed: int
    rejected: int
    unknown: int
    dead: int
    retried: int
    recovered: int
    wishes: int
    open_rows: int

    @property
    def unsettled(self) -> int:
        """How many envelopes, wishes and rows of the product have not come to an end."""
        return self.pending + self.waiting + self.running + self.wishes + self.open_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Percentiles of the two waits, in ms."""

    staged_to_sent: dict[str, float]
    sent_to_started: dict[str, float]


class Books:
    """One reader's connection, as the database's owner."""

    def __init__(self, conn: psycopg.Connection[Any], queries: Queries) -> None:
        self._conn = conn
        self._queries = queries

    def standing(self) -> Standing:
        """Where everything is now."""
        with self._conn.cursor(row_factory=class_row(Standing)) as cursor:
            found = cursor.execute(self._queries["standing"]).fetchone()
        if found is None:
            raise RuntimeError("an aggregate without GROUP BY always answers one row")
        return found

    def waits(self, last_s: float = ALL_S) -> Waits:
        """What the envelopes staged in the last `last_s` seconds waited."""
        rows = self._conn.execute(self._queries["waits"], {"last_s": last_s}).fetchall()
        return Waits(
            staged_to_sent=percentiles([max(0.0, row[0]) for row in rows]),
            sent_to_started=percentiles([max(0.0, row[1]) for row in rows]),
        )

    def proof(self) -> Proof:
        """Compare what the shop committed with what was executed."""
        commits = [Commit(*row) for row in self._conn.execute(self._queries["commits"])]
        executions = [Execution(*row) for row in self._conn.execute(self._queries["executions"])]
        unknown = {row[0] for row in self._conn.execute(self._queries["unknown_orders"])}
        return prove(commits, executions, unknown=unknown)

    def product(self, calls: Path, kills: Iterable[Kill]) -> ProductProof:
        """Compare what was asked of the product with how it ended, and with the provider's log."""
        asked = [Asked(*row) for row in self._conn.execute(self._queries["asked"])]
        hollow = [f"{domain} {number}" for domain, number in self._conn.execute(self._queries["hollow"])]
        return prove_product(asked, calls=received(calls), hollow=hollow, kills=kills)

    def recovered(self) -> dict[str, int]:
        """How often each domain put something in line again."""
        return dict(self._conn.execute(self._queries["recovered"]).fetchall())
