"""The course of the demo: start, N seconds of orders, wait until all is settled, stop, compare the witnesses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from .board import Board
from .books import Books, Standing
from .cast import PFSUP, SHOP, Cast
from .place import Place, prepare, shop_queries
from .summary import Summary

RECENT_S = 5.0
SETTLE_S = 60.0  # delays and retries take 2 s at most; a worker's lease that must run out would take its 60

Act = Callable[[float, Cast], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`seconds` of orders at `rate` a second, done by `workers` processes."""

    seconds: float
    rate: float
    workers: int


def nothing_happens(elapsed_s: float, cast: Cast) -> None:
    """The act of part 1: no process is ended before its time."""


def play(place: Place, script: Script, board: Board, *, act: Act = nothing_happens) -> Summary:
    """Play `script` at `place`, show it on `board`, and compare the witnesses.

    `act` is called all the time with the seconds since the first order; it may end and start programs of the cast.
    PfsupError when a program ends that should run. However this ends, no program is left.
    """
    prepare(place)
    queries = shop_queries()
    with psycopg.connect(place.owner_url, autocommit=True, application_name="demo") as conn, Cast(place) as cast:
        return Play(script, board, Books(conn, queries), cast).run(act)


class Play:
    """One performance."""

    def __init__(self, script: Script, board: Board, books: Books, cast: Cast) -> None:
        self._script = script
        self._board = board
        self._books = books
        self._cast = cast
        self._tick = threading.Event()  # never set: its wait is the pause, and Ctrl-C ends it
        self._show_at = time.monotonic()

    def run(self, act: Act) -> Summary:
        """From the first order to the verdict."""
        self._cast.start_pfsup()
        for number in range(1, self._script.workers + 1):
            self._cast.start_worker(number)
        self._cast.start_shop(self._script.rate)
        self._serve(act)
        ends = self._cast.dismiss(SHOP)
        self._settle()
        ends += self._cast.dismiss(PFSUP)
        ends += self._cast.dismiss(*self._cast.workers)
        return Summary(
            standing=self._books.standing(), waits=self._books.waits(), proof=self._books.proof(), ends=tuple(ends)
        )

    def _serve(self, act: Act) -> None:
        began = time.monotonic()
        while (elapsed_s := time.monotonic() - began) < self._script.seconds:
            self._cast.check()
            act(elapsed_s, self._cast)
            self._show(f"{elapsed_s:>4.0f} s of {self._script.seconds:g} s", self._books.standing)
            self._tick.wait(min(0.1, self._script.seconds - elapsed_s))

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
