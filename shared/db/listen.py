"""LISTEN on a connection of its own, which heals; a hint that may be lost, never a way that work depends on.

Behind a transaction pooler LISTEN succeeds and nothing ever arrives, so each (re)connection is proved by a NOTIFY from
*another* connection (from its own it passes there too). A peer that vanished without a word is noticed by a query with
a deadline on this side. After every reconnection the waiter scans once: what was said meanwhile is lost.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable

from psycopg import sql

from ...config.values import Database
from ..backoff import Backoff
from ..drain import Drain
from .connect import Connection, aconnect, database_url
from .deadline import fetch_within
from .ready import drained_within, is_away, remedy

logger = logging.getLogger("pfsup.listen")

PROBE_S = 2.0
# Between proofs that the server is still there. TCP keep-alive finds a dead peer in 11 s, a stopped backend never.
LIVENESS_S = 10.0
# A pooler stays a pooler until somebody changes the configuration or the network.
RETRY_DEAF_S = 30.0


class Deaf(Exception):
    """The probe did not come back: this connection hears nothing."""


class Listener:
    """Calls `wake` for every notification, and once after each (re)connection. Run it as one task beside the work.

    `notify` sends the probe from another connection. `state` says in words how it stands: `listening`, or why not.
    """

    def __init__(
        self,
        database: Database,
        *,
        application_name: str,
        wake: Callable[[], None],
        notify: Callable[[], Awaitable[None]],
        liveness_s: float = LIVENESS_S,
        retry_deaf_s: float = RETRY_DEAF_S,
    ) -> None:
        self._database = database
        self._application_name = application_name
        self._wake = wake
        self._notify = notify
        self._liveness_s = liveness_s
        self._retry_deaf_s = retry_deaf_s
        self._channel = channel(database)
        self.state = "connecting"

    def __repr__(self) -> str:
        return f"<Listener {self._channel} {self.state}>"

    async def run(self, drain: Drain) -> None:
        """Listen until the drain is asked for; every failure is a reason to try again, with back-off up to 5 s."""
        backoff = Backoff(0.1, 5.0, rng=random.Random())  # noqa: S311 - spreads retries, guards nothing
        while not drain.requested:
            try:
                await self._listen(drain, backoff)
            except Deaf:
                self._say(
                    f"poll: notifications do not arrive on {self._channel} (a transaction pooler? set listen_url)"
                )
                await drained_within(drain, self._retry_deaf_s)
            except Exception as error:
                if not is_away(error):
                    raise
                self._say(f"lost: {remedy(error)}")
                await drained_within(drain, backoff.next_s())

    async def _listen(self, drain: Drain, backoff: Backoff) -> None:
        conn = await aconnect(
            self._database,
            application_name=self._application_name,
            url=database_url(self._database, listening=True),
            autocommit=True,
        )
        try:
            await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            await self._prove(conn)
            backoff.reset()
            self._say("listening")
            self._wake()
            while not drain.requested:
                await self._hear(conn, drain)
        finally:
            # The server's answer to a polite goodbye may never come.
            await conn.close()

    async def _prove(self, conn: Connection) -> None:
        """Any notification within PROBE_S proves the way; the probe makes sure that there is one."""
        await self._notify()
        async for _ in conn.notifies(timeout=PROBE_S, stop_after=1):
            return
        raise Deaf

    async def _hear(self, conn: Connection, drain: Drain) -> None:
        """Wake for what arrives; when nothing did for a while, ask whether the server is there at all."""
        heard = False
        # Read to its end: a suspended generator holds the connection's lock, and the liveness query would hang.
        async for _ in conn.notifies(timeout=self._liveness_s, stop_after=1):
            heard = True
            self._wake()
        if not heard and not drain.requested:
            await fetch_within(conn, b"SELECT 1", deadline_s=PROBE_S)

    def _say(self, state: str) -> None:
        if state == self.state:
            return
        level = logging.INFO if state == "listening" else logging.WARNING
        logger.log(level, "listen: %s", state)
        self.state = state


def channel(database: Database) -> str:
    """The channel on which commits of this schema are announced."""
    return f"{database.schema}_wake"
