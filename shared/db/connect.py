"""Connections that rely on nothing the server, the role or the environment may have set otherwise.

Under an inherited `default_transaction_isolation = serializable` 231 of 240 claims failed; a dead TCP peer was noticed
after hours; a killed client's query held its row locks for 9.8 s. So every connection pins what it needs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import psycopg
from psycopg.rows import TupleRow

from ...config.errors import ConfigError
from ...config.secrets import secret
from ...config.values import Database
from .schema_name import checked_schema

_REFUSED = "unsupported startup parameter"

Params = Sequence[Any] | Mapping[str, Any] | None


class Connection(psycopg.AsyncConnection[TupleRow]):
    """An async connection that knows whether its pins reached the server.

    `pooled` is True behind a transaction pooler that drops startup options: a session's settings and prepared
    statements then belong to somebody else a moment later. `fetch()` sets the limits inside each transaction instead.
    """

    pooled: bool = False
    limits: bytes = b""

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """Connect as psycopg does; where the options are refused, connect without them and be `pooled`."""
        limits: bytes = kwargs.pop("limits", b"")
        try:
            conn = await super().connect(conninfo, **kwargs)
        except psycopg.OperationalError as error:
            if _REFUSED not in str(error):
                raise
            kwargs.pop("options", None)
            conn = await super().connect(conninfo, **kwargs)
        try:
            await _look_for_pins(conn)
        except BaseException:
            await conn.close()
            raise
        conn.limits = limits
        return conn


async def _look_for_pins(conn: Connection) -> None:
    """PgBouncer can be told to ignore `options` silently, so ask the server whether ours arrived."""
    autocommit = conn.autocommit
    await conn.set_autocommit(True)
    row = await (await conn.execute(b"SELECT current_setting('pfsup.pinned', true)")).fetchone()
    conn.pooled = row is None or row[0] != "1"
    if conn.pooled:
        conn.prepare_threshold = None
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        await conn.set_read_only(False)
    await conn.set_autocommit(autocommit)


_SCANS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")


def database_url(database: Database, url: str | None = None, *, listening: bool = False) -> str:
    """The connection string: `url`, else `[database] url` with its file read now, so a rotated password is used.

    `listening`: for LISTEN, `[database] listen_url` goes first where it is set.
    """
    found = url
    if listening:
        found = secret(database.listen_url, database.listen_url_file)
    found = found or secret(database.url, database.url_file)
    if not found:
        raise ConfigError(["database.url: cannot connect to PostgreSQL: no url is set; set [database] url or url_file"])
    return found


def pins(database: Database, *, durable: bool = True, seeks: bool = False) -> dict[str, str]:
    """Server settings that every pfsup connection relies on.

    `seeks`: every statement looks rows up along an index. No plan may read a table from end to end then, whatever the
    statistics say: with those of an empty table the cycles of a domain grew from 1.2 to 4.1 s as the table filled.

    Without `durable` a commit does not wait for the disk. Dispatch may do so: of a claim or a mark that a crash of the
    server takes back, all that follows is one more delivery, and what settles work commits durably by itself.
    """
    statement_ms, lock_ms = round(database.statement_timeout * 1000), round(database.lock_timeout * 1000)
    return (
        {
            "pfsup.pinned": "1",
            "default_transaction_isolation": "read committed",
            "default_transaction_read_only": "off",
            "default_transaction_deferrable": "off",
            "search_path": f"pg_catalog, {checked_schema(database.schema)}, pg_temp",
            "jit": "off",
            "statement_timeout": str(statement_ms),
            "lock_timeout": str(lock_ms),
            "idle_in_transaction_session_timeout": str(statement_ms * 2),
            "idle_session_timeout": "0",
            # A killed client's running query otherwise keeps its locks to its end: 9.83 s seen, 0.81 s with this.
            "client_connection_check_interval": "1s",
        }
        | ({} if durable else {"synchronous_commit": "off"})
        | (dict.fromkeys(_SCANS, "off") if seeks else {})
    )


def connect_arguments(
    database: Database, *, application_name: str, durable: bool = True, seeks: bool = False
) -> dict[str, Any]:
    """Keyword arguments for psycopg's connect(): pins, timeouts, TCP keep-alive (a dead peer is noticed in ~10 s)."""
    told = pins(database, durable=durable, seeks=seeks)
    return {
        "application_name": application_name,
        "connect_timeout": max(1, round(database.connect_timeout)),
        "options": " ".join(f"-c {name}={_escaped(value)}" for name, value in told.items()),
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }


def limits_query(database: Database, *, durable: bool = True, seeks: bool = False) -> bytes:
    """The pins as one statement for one transaction, for connections where a session's settings do not hold."""
    local = {
        k: v
        for k, v in pins(database, durable=durable, seeks=seeks).items()
        if not k.startswith(("default_", "pfsup.", "idle_session"))
    }
    return b"SELECT " + b", ".join(b"set_config('%s', '%s', true)" % (k.encode(), v.encode()) for k, v in local.items())


def connect(
    database: Database, *, application_name: str, url: str | None = None, autocommit: bool = False
) -> psycopg.Connection[TupleRow]:
    """A pinned synchronous connection. Raises psycopg.OperationalError, or ConfigError without a url."""
    arguments = connect_arguments(database, application_name=application_name)
    where = database_url(database, url)
    try:
        return psycopg.connect(where, autocommit=autocommit, **arguments)
    except psycopg.OperationalError as error:
        if _REFUSED not in str(error):
            raise
    del arguments["options"]
    conn = psycopg.connect(where, autocommit=autocommit, prepare_threshold=None, **arguments)
    conn.isolation_level, conn.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    return conn


async def aconnect(
    database: Database, *, application_name: str, url: str | None = None, autocommit: bool = False
) -> Connection:
    """A pinned asynchronous connection. Raises psycopg.OperationalError, or ConfigError without a url."""
    arguments = connect_arguments(database, application_name=application_name)
    return await Connection.connect(
        database_url(database, url), autocommit=autocommit, limits=limits_query(database), **arguments
    )


@asynccontextmanager
async def limited(conn: Connection) -> AsyncGenerator[Connection]:
    """A transaction in which the pins hold, also behind a transaction pooler. Commits, or rolls back on an error."""
    async with conn.transaction():
        if conn.pooled:
            await conn.execute(conn.limits)
        yield conn


async def fetch(conn: Connection, query: bytes, params: Params = None) -> list[TupleRow]:
    """Run one statement as a transaction of its own and return its rows. `conn` must be in autocommit.

    One round trip and a prepared plan on a direct connection; behind a pooler a transaction with its limits.
    """
    if not conn.pooled:
        return await (await conn.execute(query, params, prepare=True)).fetchall()
    async with limited(conn):
        return await (await conn.execute(query, params)).fetchall()


def _escaped(value: str) -> str:
    return re.sub(r"([\\ ])", r"\\\1", value)
