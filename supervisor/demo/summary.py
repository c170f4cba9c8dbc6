"""What the demo says at its end, for people and as one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .books import Standing, Waits
from .witness import Proof

SHOWN = 5  # of what was lost or done twice, so that a broken run does not fill the terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`ends`: programs that did not end with exit code 0, as text."""

    standing: Standing
    waits: Waits
    proof: Proof
    ends: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether pfsup kept its word: nothing lost, nothing twice, everything stopped as asked."""
        return self.proof.holds and not self.ends

    def as_json(self) -> dict[str, Any]:
        """The figures by name; `lost` and `twice` are counts. Waits in ms."""
        now = self.standing
        return {
            "committed": self.proof.committed,
            "envelopes": now.envelopes,
            "sent": now.sent,
            "executed": self.proof.executed,
            "consumed": now.consumed,
            "rejected": now.rejected,
            "retried": now.retried,
            "recovered": now.recovered,
            "unknown": now.unknown,
            "dead": now.dead,
            "unsettled": now.unsettled,
            "lost": len(self.proof.lost),
            "twice": len(self.proof.twice),
            "uncommitted": len(self.proof.uncommitted),
            "waits_ms": {
                "staged_to_sent": rounded(self.waits.staged_to_sent),
                "sent_to_started": rounded(self.waits.sent_to_started),
            },
            "ends": list(self.ends),
            "ok": self.holds,
        }

    def as_lines(self) -> list[str]:
        """A table of the waits, the counts, and the verdict as the last line."""
        now = self.standing
        counts = f"{now.consumed:,} consumed, {now.rejected:,} rejected, {now.unknown:,} unknown, {now.dead:,} dead"
        return [
            f"committed {self.proof.committed:,} orders in {now.envelopes:,} envelopes: {counts}",
            f"          {now.retried:,} retried, {now.recovered:,} recovered, {now.unsettled:,} unsettled",
            f"{'waits, ms':<18}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}",
            wait_line("staged -> sent", self.waits.staged_to_sent),
            wait_line("sent -> started", self.waits.sent_to_started),
            *(f"BROKEN: {end}" for end in self.ends),
            *self.offences(),
            self.verdict(),
        ]

    def offences(self) -> list[str]:
        """The first of what was lost, done twice, or done without a commit."""
        proof = self.proof
        lines = [f"LOST: commit {commit_id} was never executed" for commit_id in proof.lost[:SHOWN]]
        lines += [f"TWICE: {run} was executed {count} times" for run, count in proof.twice[:SHOWN]]
        return lines + [f"UNCOMMITTED: {aggregate} was executed" for aggregate in proof.uncommitted[:SHOWN]]

    def verdict(self) -> str:
        """One line: whether the two witnesses agree."""
        proof = self.proof
        counts = f"lost {len(proof.lost)}, twice {len(proof.twice)}"
        if proof.uncommitted:
            counts += f", executed without a commit {len(proof.uncommitted)}"
        if self.holds:
            return f"ok: {counts}: each of {proof.committed:,} committed orders was executed, none of them twice"
        return f"FAILED: {counts}" + (", and not everything stopped as asked" if self.ends else "")


def wait_line(name: str, figures: dict[str, float]) -> str:
    """One row of the table of waits."""
    return f"  {name:<16}" + "".join(f"{figures[key]:>9.1f}" for key in ("p50", "p95", "p99", "max"))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """The same, in microsecond steps."""
    return {name: round(value, 3) for name, value in figures.items()}
