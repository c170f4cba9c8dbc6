"""The course of the demo: start, N seconds of orders, wait until all is settled, stop, compare the witnesses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from .board import Board
from .books import Books, Standing
from .cast import PFSUP, PROVIDER, SHOP, Cast
from .kills import Killer
from .place import Place, prepare, shop_queries
from .summary import Summary

RECENT_S = 5.0
SETTLE_S = 90.0  # delays and retries take 2 s at most; a worker's lease that must run out would take its 60

MORE_S = 30.0  # the shop stays open for at most that much longer, until a worker has died at every boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`seconds` of orders at `rate` a second, done by `workers` processes."""

    seconds: float
    rate: float
    workers: int


def play(place: Place, script: Script, board: Board) -> Summary:
    """Play `script` at `place`, show it on `board`, and compare the witnesses. Meanwhile workers are killed.

    PfsupError when a program ends that should run. However this ends, no program is left.
    """
    prepare(place)
    queries = shop_queries()
    with psycopg.connect(place.owner_url, autocommit=True, application_name="demo") as conn, Cast(place) as cast:
        return Play(script, board, Books(conn, queries), cast).run(place.calls)


class Play:
    """One performance."""

    def __init__(self, script: Script, board: Board, books: Books, cast: Cast) -> None:
        self._script = script
        self._board = board
        self._books = books
        self._cast = cast
        self._killer = Killer()
        self._tick = threading.Event()  # never set: its wait is the pause, and Ctrl-C ends it
        self._show_at = time.monotonic()

    def run(self, calls: Path) -> Summary:
        """From the first order to the verdict. `calls`: the provider's log."""
        self._cast.start_provider()
        self._cast.start_pfsup()
        for number in range(1, self._script.workers + 1):
            self._cast.start_worker(number)
        self._cast.start_shop(self._script.rate)
        self._serve()
        ends = self._cast.dismiss(SHOP)
        self._killer.end(self._cast)
        self._settle()
        ends += self._cast.dismiss(PFSUP)
        ends += self._cast.dismiss(*self._cast.workers, PROVIDER)
        return Summary(
            standing=self._books.standing(),
            waits=self._books.waits(),
            proof=self._books.proof(),
            product=self._books.product(calls, self._killer.kills),
            kills=self._killer.by_boundary,
            recovered=self._books.recovered(),
            ends=tuple(ends),
        )

    def _serve(self) -> None:
        """As long as the script says, and longer until a worker has died at every boundary."""
        began = time.monotonic()
        while (elapsed_s := time.monotonic() - began) < self._script.seconds or (
            not self._killer.complete and elapsed_s < self._script.seconds + MORE_S
        ):
            self._killer.act(elapsed_s, self._cast)
            self._cast.check()
            self._show(f"{elapsed_s:>4.0f} s of {self._script.seconds:g} s", self._books.standing)
            self._tick.wait(0.05)

    def _settle(self) -> None:
        """Wait until every envelope has come to an end, at most SETTLE_S; what is left then shows in the proof."""
        deadline = time.monotonic() + SETTLE_S
        while (standing := self._books.standing()).unsettled and time.monotonic() < deadline:
            self._cast.check()
            self._show("the shop is closed, what is left is done", lambda: standing)
            self._tick.wait(0.1)
        self._show_at = 0.0
        self._show("all is settled" if not standing.unsettled else "time is over", lambda: standing)

    def _show(self, stage: str, look: Callable[[], Standing]) -> None:
        """Show the state when the board wants it again."""
        if time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + self._board.every_s
            self._board.show(stage, look(), self._books.waits(RECENT_S))
