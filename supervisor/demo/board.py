"""What the demo shows while it runs: a table that is drawn over itself on a terminal, else a line now and then."""

from __future__ import annotations

from typing import Protocol, TextIO

from .books import Standing, Waits
from .summary import wait_line

LINE_EVERY_S = 5.0
DRAW_EVERY_S = 0.5


class Board(Protocol):
    """Where the state is shown."""

    every_s: float

    def show(self, stage: str, standing: Standing, waits: Waits) -> None:
        """Show the state now; `stage` says what is going on."""
        ...


class Table:
    """Draws over its last drawing. For a terminal."""

    every_s = DRAW_EVERY_S

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._height = 0

    def show(self, stage: str, standing: Standing, waits: Waits) -> None:
        """Draw the table anew."""
        lines = table_lines(stage, standing, waits)
        up = f"\x1b[{self._height}A\x1b[J" if self._height else ""
        self._out.write(up + "\n".join(lines) + "\n")
        self._out.flush()
        self._height = len(lines)


class Lines:
    """One line a call. For a file or a pipe."""

    every_s = LINE_EVERY_S

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, stage: str, standing: Standing, waits: Waits) -> None:
        """Print one line."""
        self._out.write(
            f"{stage}: committed {standing.committed:,} sent {standing.sent:,} running {standing.running:,}"
            f" consumed {standing.consumed:,} rejected {standing.rejected:,} pending {standing.pending:,};"
            f" staged -> sent p50 {waits.staged_to_sent['p50']:.1f} p99 {waits.staged_to_sent['p99']:.1f} ms\n"
        )
        self._out.flush()


def table_lines(stage: str, standing: Standing, waits: Waits) -> list[str]:
    """The table: counts in two columns, then the waits of the last seconds."""
    left = [("committed", standing.committed), ("sent", standing.sent), ("executed", standing.executed)]
    middle = [("pending", standing.pending), ("in the stream", standing.waiting), ("running", standing.running)]
    right = [("consumed", standing.consumed), ("rejected", standing.rejected), ("retried", standing.retried)]
    counts = [
        "".join(f"  {name:<14}{count:>8,}" for name, count in row) for row in zip(left, middle, right, strict=True)
    ]
    heads = f"  {'last 5 s, ms':<16}{'p50':>9}{'p95':>9}{'p99':>9}{'max':>9}"
    waits_shown = [
        wait_line("staged -> sent", waits.staged_to_sent),
        wait_line("sent -> started", waits.sent_to_started),
    ]
    return [stage, *counts, heads, *waits_shown]


def board_for(out: TextIO, *, plain: bool) -> Board:
    """A table on a terminal that can draw, else lines."""
    return Lines(out) if plain or not out.isatty() else Table(out)
