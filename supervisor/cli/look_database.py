"""`pfsup check` on the database: reached, migrated, permitted, room for our connections, notifications arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from ...config import values
from ...config.errors import ConfigError, PfsupError, SchemaError
from ...config.relations import pools
from ...config.secrets import secret
from ...shared.db.connect import connect, database_url
from ...shared.db.migrate import OLDEST_SERVER, standing
from ...shared.db.ready import remedy
from ...shared.text import printable
from .findings import NAME, Finding, State

Connection = psycopg.Connection[TupleRow]

NOTIFY_WAIT_S = 2.0


def look(settings: values.Settings) -> Iterator[Finding]:
    """Everything about the database; only whether it was reached when it was not."""
    began = time.monotonic()
    try:
        conn = connect(settings.database, application_name=NAME, autocommit=True)
    except (psycopg.Error, PfsupError) as error:
        yield _not_connected("database", settings.database, error)
        return
    took_ms = (time.monotonic() - began) * 1000
    with closing(conn):
        yield _reached(conn, took_ms=took_ms)
        for part in (_writable, _schema, _role, _connections, _notifications):
            yield from _looked(part, conn, settings)


def _looked(
    part: Callable[[Connection, values.Settings], Iterator[Finding]], conn: Connection, settings: values.Settings
) -> Iterator[Finding]:
    """What one part finds; its own failure is a finding too, and hides no other."""
    try:
        yield from part(conn, settings)
    except psycopg.Error as error:
        yield Finding(subject=part.__name__.strip("_"), state="failed", text="cannot look", next_step=remedy(error))


def _not_connected(subject: str, settings: values.Database, error: Exception, url: str | None = None) -> Finding:
    if isinstance(error, ConfigError):
        return Finding(subject=subject, state="failed", text=" ".join(error.problems))
    return Finding(subject=subject, state=_state(settings, url), text="cannot connect", next_step=remedy(error))


def _state(settings: values.Database, url: str | None) -> State:
    """PQping tells a server that is away from one that refuses us: it needs no valid user (libpq manual 32.1)."""
    try:
        wanted = make_conninfo(database_url(settings, url), connect_timeout=max(1, round(settings.connect_timeout)))
    except psycopg.Error:
        return "failed"
    if not all(port.isdecimal() for port in str(conninfo_to_dict(wanted).get("port", 5432)).split(",") if port):
        return "failed"  # libpq would say "no response"
    answer = pq.PGconn.ping(wanted.encode())
    return "away" if answer in (pq.Ping.NO_RESPONSE, pq.Ping.REJECT) else "failed"


def _reached(conn: Connection, *, took_ms: float) -> Finding:
    version = conn.info.server_version
    text = (
        f"PostgreSQL {version // 10000}.{version % 10000} as {printable(conn.info.user)}, connected in {took_ms:.0f} ms"
    )
    if version < OLDEST_SERVER:
        return Finding(subject="database", state="failed", text=text, next_step="PostgreSQL 14 or newer is needed")
    return Finding(subject="database", state="ok", text=text)


def _row(conn: Connection, query: bytes, params: dict[str, Any] | None = None) -> tuple[Any, ...]:
    row = conn.execute(query, params).fetchone()
    assert row is not None, "a query without FROM gives one row"
    return row


_IS_STANDBY = b"SELECT pg_is_in_recovery()"


def _writable(conn: Connection, _: values.Settings) -> Iterator[Finding]:
    if _row(conn, _IS_STANDBY)[0]:
        step = "point [database] url at the primary"
        yield Finding(subject="database", state="failed", text="it is a standby and cannot be written", next_step=step)


def _schema(conn: Connection, settings: values.Settings) -> Iterator[Finding]:
    schema = settings.database.schema
    try:
        found = standing(conn, schema)
    except SchemaError as error:
        yield Finding(subject="schema", state="failed", text=str(error))
        return
    except psycopg.errors.InsufficientPrivilege:
        step = f"GRANT {schema}_run TO {printable(conn.info.user)}"
        yield Finding(subject="schema", state="failed", text=f"this user may not read schema {schema}", next_step=step)
        return
    match (found.version, found.pending, found.changed):
        case (None, _, _):
            yield Finding(
                subject="schema", state="failed", text=f"schema {schema} is missing", next_step="run: pfsup migrate"
            )
        case (_, (_, *_), _):
            text = (
                f"schema {schema} is older than this version: " + ", ".join(m.title for m in found.pending) + " pending"
            )
            yield Finding(subject="schema", state="failed", text=text, next_step="run: pfsup migrate")
        case (_, _, (_, *_)):
            text = f"schema {schema} was made by another text of " + ", ".join(found.changed)
            yield Finding(
                subject="schema", state="warning", text=text, next_step="install the released version's schema"
            )
        case _:
            yield Finding(subject="schema", state="ok", text=f"{schema}, version {found.version}")


def _role(conn: Connection, settings: values.Settings) -> Iterator[Finding]:
    role = f"{settings.database.schema}_run"
    query = b"SELECT CASE WHEN to_regrole(%(role)s) IS NOT NULL THEN pg_has_role(current_user, %(role)s, 'USAGE') END"
    granted = _row(conn, query, {"role": role})[0]
    if granted is False:
        step = f"GRANT {role} TO {printable(conn.info.user)}"
        yield Finding(subject="role", state="failed", text=f"this user does not have role {role}", next_step=step)
    elif granted:
        yield Finding(subject="role", state="ok", text=f"this user has role {role}")


# Of other users' sessions only ids show without pg_read_all_stats; usesysid is null for the server's own processes.
_CONNECTIONS = b"""
WITH others AS (
  SELECT count(*) AS server,
         count(*) FILTER (WHERE usename = current_user) AS own,
         count(*) FILTER (WHERE datname = current_database()) AS here
    FROM pg_stat_activity
   WHERE usesysid IS NOT NULL
     AND coalesce(application_name, '') NOT LIKE 'pfsup:%%'
)
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true), '0')::int,
       server,
       (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user),
       own,
       (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
       here
  FROM others
"""


def _connections(conn: Connection, settings: values.Settings) -> Iterator[Finding]:
    """Our pools must fit below max_connections, the user's limit and the database's limit, beside what others hold."""
    wanted = wanted_connections(settings)
    server, in_server, user, of_user, database, in_database = _row(conn, _CONNECTIONS)
    limits = (
        ("max_connections less the reserved", server, in_server),
        ("the user's limit", user, of_user),
        ("the database's limit", database, in_database),
    )
    name, limit, others = min((row for row in limits if row[1] is not None), key=lambda row: row[1] - row[2])
    text = f"the pools may take {wanted}, {name} is {limit}, others hold {others}"
    state = "failed" if wanted > limit else "warning" if wanted + others > limit else "ok"
    step = "" if state == "ok" else "raise it, or lower the pools' max"
    yield Finding(subject="connections", state=state, text=text, next_step=step)


def wanted_connections(settings: values.Settings) -> int:
    """The most connections that this supervisor's processes hold: the pools of what runs, and one for LISTEN."""
    running = {"dispatch.pool": settings.dispatch.enabled, "housekeeping.pool": settings.housekeeping.enabled}
    disabled = [d.pool for d in settings.domains.values() if not d.enabled]
    total = sum(pool.max for path, pool in pools(settings) if running.get(path, True))
    return (
        total - sum(pool.max for pool in disabled) + (settings.dispatch.enabled and settings.dispatch.wake == "notify")
    )


def _notifications(conn: Connection, settings: values.Settings) -> Iterator[Finding]:
    usage = cast("float", _row(conn, b"SELECT pg_notification_queue_usage()")[0])
    if usage > 0.5:
        step = "end the session that listens and stays in a transaction; when it is full, commits with NOTIFY fail"
        text = f"PostgreSQL's notification queue is {usage:.0%} full"
        yield Finding(subject="notifications", state="failed" if usage > 0.9 else "warning", text=text, next_step=step)
    if settings.dispatch.enabled and settings.dispatch.wake == "notify":
        yield _heard(conn, settings.database)


def _heard(conn: Connection, database: values.Database) -> Finding:
    """Whether a notification sent here arrives at the address that dispatch listens on."""
    url = None
    try:
        url = secret(database.listen_url, database.listen_url_file) or None
        listener = connect(database, application_name=NAME, url=url, autocommit=True)
    except (psycopg.Error, PfsupError) as error:
        return _not_connected("notifications", database, error, url)
    with closing(listener):
        listener.execute("LISTEN pfsup_check")
        conn.execute("NOTIFY pfsup_check")
        heard = next(listener.notifies(timeout=NOTIFY_WAIT_S, stop_after=1), None)
    if heard is not None:
        return Finding(subject="notifications", state="ok", text="a notification arrives")
    step = "set [database] listen_url to a direct connection; until then rows wait for the scan"
    text = f"no notification arrived within {NOTIFY_WAIT_S:g} s, as behind a transaction pooler"
    return Finding(subject="notifications", state="warning", text=text, next_step=step)
