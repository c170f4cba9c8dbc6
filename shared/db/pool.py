"""A pool of its own for each process, sized by its section of the configuration (seed 000, section 7)."""

from __future__ import annotations

import logging
from typing import Any

from psycopg_pool import AsyncConnectionPool

from ...config.values import Database, Pool
from .connect import Connection, connect_arguments, database_url, limits_query

# The pool's own warnings repeat every retry and quote the server's words; the waiting state tells it once.
logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


def open_pool(
    database: Database, pool: Pool, *, application_name: str, durable: bool = True
) -> AsyncConnectionPool[Connection]:
    """A pool of pinned autocommit connections, not yet open: use it as `async with`. For `durable` see `pins`.

    The url is read again for every connection, so a rotated password needs no restart. Waiting for a connection ends
    after `connect_timeout` with psycopg_pool.PoolTimeout.
    """

    def arguments() -> dict[str, Any]:
        asked = connect_arguments(database, application_name=application_name, durable=durable)
        return asked | {"autocommit": True, "limits": limits_query(database, durable=durable)}

    return AsyncConnectionPool(
        lambda: database_url(database),
        connection_class=Connection,
        kwargs=arguments,
        min_size=pool.min,
        max_size=max(1, pool.max),
        timeout=database.connect_timeout,
        reconnect_timeout=database.connect_timeout,
        num_workers=1,
        name=application_name,
        open=False,
    )
