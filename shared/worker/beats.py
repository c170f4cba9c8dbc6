"""The sign of life of every row that this process holds, from a thread and a connection of their own.

Not from the loop that runs the functions: one that blocks it for longer than the lease would lose its row although it
is healthy. What bounds a function that hangs is its actor's max_run: beat() then answers `deadline`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from ..db.ready import remedy
from ..log import Repeats
from .calls import beat_params
from .hold import Hold, Loss

Connect = Callable[[], psycopg.Connection[Any]]

_LOSSES: dict[str, Loss] = {"late": "late", "cancel": "cancel", "deadline": "deadline"}


class Beats:
    """Prolongs all holds in one statement, every third of the lease. Connects when there is something to prolong."""

    def __init__(self, connect: Connect, query: bytes, *, lease_s: float) -> None:
        self._connect = connect
        self._query = query
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._holds: dict[int, Hold] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._conn: psycopg.Connection[Any] | None = None
        self._repeats = Repeats(logging.getLogger("pfsup.worker"))

    def __repr__(self) -> str:
        return f"<Beats holds={len(self._holds)} connected={self._conn is not None}>"

    def hold(self, hold: Hold) -> None:
        """Keep `hold`'s row from now on."""
        with self._lock:
            self._holds[id(hold)] = hold
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="pfsup-beats", daemon=True)
                self._thread.start()

    def release(self, hold: Hold) -> None:
        """Let go of it: its run settles now, and what a beat says later counts no more."""
        with self._lock:
            self._holds.pop(id(hold), None)

    def close(self) -> None:
        """End the thread and its connection; waits for the statement that runs."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def beat_once(self) -> bool:
        """Prolong everything that is held; False when the database could not be asked."""
        with self._lock:
            holds = list(self._holds.values())
        if not holds:
            return True
        try:
            rows = self._ask(holds)
        except (psycopg.Error, OSError) as error:
            self._repeats.say(f"cannot prolong {len(holds)} leases: {remedy(error)}")
            self._disconnect()
            return False
        self._repeats.over("leases are prolonged again")
        for number, token, verdict in rows:
            if verdict in _LOSSES:
                self._lose(number, token, _LOSSES[verdict])
        return True

    def _ask(self, holds: list[Hold]) -> list[Any]:
        if self._conn is None:
            self._conn = self._connect()
        return self._conn.execute(self._query, beat_params(holds, self._lease_s)).fetchall()

    def _lose(self, number: int, token: object, why: Loss) -> None:
        with self._lock:
            # A hold that was released meanwhile is settled: `late` is then its own settle's work.
            lost = [h for h in self._holds.values() if h.id == number and h.token == token]
            for hold in lost:
                self._holds.pop(id(hold), None)
        for hold in lost:
            hold.lose(why)

    def _run(self) -> None:
        pause_s = self._lease_s / 3
        while not self._ended.wait(pause_s):
            pause_s = self._lease_s / 3 if self.beat_once() else min(1.0, self._lease_s / 6)
        self._disconnect()

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
