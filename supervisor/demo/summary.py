"""What the demo says at its end, for people and as one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .books import Standing, Waits
from .boundaries import Boundary
from .product_proof import ProductProof
from .witness import Proof

SHOWN = 5  # of what was lost or done twice, so that a broken run does not fill the terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`ends`: programs that did not end with exit code 0, as text."""

    standing: Standing
    waits: Waits
    proof: Proof
    product: ProductProof
    kills: Mapping[Boundary, int]
    recovered: Mapping[str, int]
    ends: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether pfsup kept its word: nothing lost, nothing twice, everything stopped as asked."""
        return self.proof.holds and self.product.holds and all(self.kills.values()) and not self.ends

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
            "unknown_orders": self.proof.unknown,
            "dead": now.dead,
            "unsettled": now.unsettled,
            "lost": len(self.proof.lost),
            "twice": len(self.proof.twice),
            "uncommitted": len(self.proof.uncommitted),
            "repeated_calls": len(self.product.repeated),
            "open": len(self.product.open),
            "hollow": len(self.product.hollow),
            "misplaced": len(self.product.misplaced),
            "kills": {boundary.value: count for boundary, count in self.kills.items()},
            "domains": {
                domain: {**counts, "recovered": self.recovered.get(domain, 0)}
                for domain, counts in self.product.counts.items()
            },
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
            *self.domain_lines(),
            *(f"BROKEN: {end}" for end in self.ends),
            *self.offences(),
            self.verdict(),
        ]

    def domain_lines(self) -> list[str]:
        """How many workers died where, and how what was asked of each domain ended."""
        where = ", ".join(f"{count} {boundary}" for boundary, count in self.kills.items())
        heads = ("succeeded", "unknown", "failed")
        lines = [f"killed {sum(self.kills.values())} workers: {where}"]
        lines.append(f"{'domain':<18}" + "".join(f"{head:>11}" for head in (*heads, "recovered")))
        for domain, counts in self.product.counts.items():
            cells = [*(counts.get(head, 0) for head in heads), self.recovered.get(domain, 0)]
            lines.append(f"  {domain:<16}" + "".join(f"{cell:>11,}" for cell in cells))
        return lines

    def offences(self) -> list[str]:
        """The first of what was lost, done twice, or done without a commit."""
        proof = self.proof
        lines = [f"LOST: commit {commit_id} was never executed" for commit_id in proof.lost[:SHOWN]]
        lines += [f"TWICE: {run} was executed {count} times" for run, count in proof.twice[:SHOWN]]
        lines += [f"UNCOMMITTED: {aggregate} was executed" for aggregate in proof.uncommitted[:SHOWN]]
        product = self.product
        for name in ("open", "repeated", "hollow", "misplaced"):
            lines += [f"{name.upper()}: {offence}" for offence in getattr(product, name)[:SHOWN]]
        return lines + [f"NOT KILLED: no worker died at {one}" for one, count in self.kills.items() if not count]

    def verdict(self) -> str:
        """One line: whether the two witnesses agree."""
        proof = self.proof
        counts = f"lost {len(proof.lost)}, twice {len(proof.twice)}"
        if proof.uncommitted:
            counts += f", executed without a commit {len(proof.uncommitted)}"
        asked = sum(sum(counts.values()) for counts in self.product.counts.values())
        if self.holds:
            return (
                f"ok: {counts}: each of {proof.committed:,} committed orders was executed, none of them twice"
                f" ({proof.unknown:,} unknown: a person decides); {asked:,} rows of five domains came to their end,"
                " no call outside was repeated"
            )
        return f"FAILED: {counts}" + (", and not everything stopped as asked" if self.ends else "")


def wait_line(name: str, figures: dict[str, float]) -> str:
    """One row of the table of waits."""
    return f"  {name:<16}" + "".join(f"{figures[key]:>9.1f}" for key in ("p50", "p95", "p99", "max"))


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """The same, in microsecond steps."""
    return {name: round(value, 3) for name, value in figures.items()}
