"""A pool of its own for each process, sized by its section of the configuration (seed 000, section 7)."""

from __future__ import annotations

import logging
from typing import Any, Self

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ...config.values import Database, Pool
from .connect import Connection, connect_arguments, database_url, limits_query

# The pool's own warnings repeat every retry and quote the server's words; the waiting state tells it once.
logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


class _Pool(AsyncConnectionPool[Connection]):
    """Says why it has no connection: the pool alone only says that none became free, which hides a wrong password."""

    refused: psycopg.Error | None = None

    async def getconn(self, timeout: float | None = None) -> Connection:
        """A connection. Where none came because the last attempt to connect failed, that failure is raised."""
        try:
            return await super().getconn(timeout)
        except PoolTimeout as error:
            if self.refused is None:
                raise
            raise psycopg.OperationalError(str(self.refused)) from error


def open_pool(
    database: Database, pool: Pool, *, application_name: str, durable: bool = True, seeks: bool = False
) -> AsyncConnectionPool[Connection]:
    """A pool of pinned autocommit connections, not yet open: use it as `async with`. `durable`, `seeks`: see `pins`.

    The url is read again for every connection, so a rotated password needs no restart. Waiting for a connection ends
    after `connect_timeout` with psycopg_pool.PoolTimeout, or with what the server said to the last attempt.
    """

    class Noted(Connection):
        @classmethod
        async def connect(cls, *args: Any, **named: Any) -> Self:
            try:
                conn = await super().connect(*args, **named)
            except psycopg.Error as error:
                made.refused = error
                raise
            made.refused = None
            return conn

    def arguments() -> dict[str, Any]:
        asked = connect_arguments(database, application_name=application_name, durable=durable, seeks=seeks)
        return asked | {"autocommit": True, "limits": limits_query(database, durable=durable, seeks=seeks)}

    made = _Pool(
        lambda: database_url(database),
        connection_class=Noted,
        kwargs=arguments,
        min_size=pool.min,
        max_size=max(1, pool.max),
        timeout=database.connect_timeout,
        reconnect_timeout=database.connect_timeout,
        num_workers=1,
        name=application_name,
        open=False,
    )
    return made
