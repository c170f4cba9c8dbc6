"""Bring a database's schema to this version. Runs as any role that may create in it; needs no superuser, no extension.

One transaction under an advisory lock, so that two `pfsup migrate` never mix (PostgreSQL manual 13.3.5). No statement
waits longer than 200 ms for a lock: behind a long transaction DDL would make every writer stand behind it too; the
transaction is given up and tried again instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from ...config.errors import DatabaseUnavailable, NotPermitted, SchemaError
from ..backoff import Backoff
from .migrations import Migration, migrations, opening, roles_of, step
from .schema_name import checked_schema

LATEST = len(migrations())
OLDEST_SERVER = 140000
ROLE_ENDINGS = ("stage", "work", "run", "operate", "read")
TRIES = 30  # 6 s of lock waits and about 26 s of pauses at most


Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a migration did. `before` is None where nothing was; `changed` names steps whose text differs now."""

    schema: str
    before: int | None
    after: int
    applied: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    roles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a database's schema stands: the version it has, what it lacks, what was made by another text."""

    version: int | None
    pending: tuple[Migration, ...]
    changed: tuple[str, ...]


def migrate(
    target: str | Connection,
    *,
    schema: str = "pfsup",
    roles: bool = True,
    steps: Sequence[Migration] | None = None,
    pause: Callable[[float], object] | None = None,
    tries: int = TRIES,
) -> Report:
    """Apply what is pending, all or nothing, and say what was done; a second call does nothing.

    `roles`: also create the roles and grants (needs CREATEROLE unless they exist). `steps`: pfsup's own, or those of
    reference_tables(), for which pfsup's roles must be there already. Fails with SchemaError when the schema is newer
    than this version or a lock stays taken for about 30 s (it names the holder's pid), with NotPermitted when the role
    lacks a right, with DatabaseUnavailable when the server cannot be reached.
    """
    checked_schema(schema)
    wait = pause or threading.Event().wait
    backoff = Backoff(0.05, 1.0)
    holders: list[int] = []
    with _opened(target) as conn:
        for _ in range(tries):
            try:
                return _attempt(conn, schema=schema, roles=roles, steps=steps or migrations())
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                holders = _holders(conn, schema)
                wait(backoff.next_s())
            except errors.InsufficientPrivilege as error:
                raise NotPermitted(_not_permitted(schema, error)) from error
    raise SchemaError(f"cannot migrate schema {schema}: {_said(holders)}; end it or wait for it, then run it again")


def current_version(conn: Connection, schema: str) -> int | None:
    """Return the version of the schema, or None where pfsup was never installed. Needs SELECT on schema_migrations."""
    applied = _applied(conn, schema)
    return max(applied) if applied else None


def standing(conn: Connection, schema: str, *, steps: Sequence[Migration] | None = None) -> Standing:
    """Compare the database with the migrations of this version; SchemaError when the database is newer."""
    known = tuple(steps or migrations())
    applied = _applied(conn, schema)
    version = max(applied) if applied else None
    if version is not None and version > len(known):
        raise SchemaError(
            f"cannot use schema {schema}: it has version {version}, this pfsup knows {len(known)}; upgrade pfsup"
        )
    return Standing(
        version=version,
        pending=tuple(m for m in known if m.version not in applied),
        changed=tuple(m.title for m in known if applied.get(m.version, m.checksum) != m.checksum),
    )


def _attempt(conn: Connection, *, schema: str, roles: bool, steps: Sequence[Migration]) -> Report:
    """Do it once, in one transaction; whatever fails leaves nothing behind."""
    _check_server(conn)
    found = standing(conn, schema, steps=steps)
    if not found.pending and not (roles and _roles_missing(conn, schema, outbox=steps[0].outbox or schema)):
        return _report(schema, found, found)
    try:
        conn.execute(opening(schema).encode())
        found = standing(conn, schema, steps=steps)  # again, now under the lock
        _refuse_changed(schema, found)
        for migration in found.pending:
            conn.execute(step(migration, schema).encode())
        if roles:
            conn.execute(roles_of(steps, schema).encode() or b"SELECT")
        after = standing(conn, schema, steps=steps)
        conn.execute("COMMIT")
    finally:
        if conn.info.transaction_status != TransactionStatus.IDLE and not conn.broken:
            conn.execute("ROLLBACK")
    return _report(schema, found, after, roles=roles)


def _check_server(conn: Connection) -> None:
    if conn.info.server_version < OLDEST_SERVER:
        raise SchemaError(f"cannot migrate: the server is PostgreSQL {_major(conn)}, wanted 14 or newer; upgrade it")
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaError(
            f"cannot migrate: the database is encoded in {encoding}, wanted UTF8; create it anew with UTF8"
        )


def _major(conn: Connection) -> int:
    return conn.info.server_version // 10000


def _report(schema: str, found: Standing, after: Standing, *, roles: bool = False) -> Report:
    return Report(
        schema=schema,
        before=found.version,
        after=after.version or 0,
        applied=tuple(m.title for m in found.pending),
        changed=after.changed,
        roles=roles,
    )


def _refuse_changed(schema: str, found: Standing) -> None:
    if found.pending and found.changed:
        raise SchemaError(
            f"cannot migrate schema {schema}: {', '.join(found.changed)} was applied with another text than this"
            " version ships; install the version that applied it, or compare with pfsup migrate --sql"
        )


def _applied(conn: Connection, schema: str) -> dict[int, str]:
    """Return version → checksum. Looks in the catalogue first: asking a missing table would end a transaction."""
    found = conn.execute(
        "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'schema_migrations'",
        [schema],
    )
    if found.rowcount == 0:
        return {}
    rows = conn.execute(
        f"SELECT version, checksum FROM {checked_schema(schema)}.schema_migrations".encode()  # noqa: S608 - checked name
    )
    return {row[0]: row[1] for row in rows}


def _roles_missing(conn: Connection, schema: str, *, outbox: str) -> bool:
    """Look whether a role of `outbox` is not there, or may not even enter `schema`: made by a run without roles."""
    names = [f"{outbox}_{ending}" for ending in ROLE_ENDINGS]
    found = conn.execute(
        "SELECT FROM pg_catalog.pg_roles WHERE rolname = ANY(%s) AND pg_catalog.has_schema_privilege(oid, %s, 'USAGE')",
        [names, schema],
    )
    return found.rowcount < len(names)


def _holders(conn: Connection, schema: str) -> list[int]:
    """Return the pids of others that hold the migration lock or a lock on the schema's relations."""
    rows = conn.execute(
        """
        SELECT DISTINCT l.pid
        FROM pg_catalog.pg_locks l
        LEFT JOIN pg_catalog.pg_class c ON l.locktype = 'relation' AND c.oid = l.relation
        LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE l.granted
          AND l.pid <> pg_catalog.pg_backend_pid()
          AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
          AND (n.nspname = %(schema)s
               OR (l.locktype = 'advisory' AND l.objsubid = 1
                   AND ((l.classid::bigint << 32) | l.objid::bigint)
                       = pg_catalog.hashtextextended('pfsup migrate ' || %(schema)s, 0)))
        ORDER BY l.pid
        """,
        {"schema": schema},
    )
    return [row[0] for row in rows if row[0] is not None]


def _said(holders: list[int]) -> str:
    if not holders:
        return "a lock that it needs stays taken"
    return f"a lock that it needs is held by the session with pid {', '.join(map(str, holders))}"


def _not_permitted(schema: str, error: psycopg.Error) -> str:
    why = error.diag.message_primary or "a right is missing"
    hint = error.diag.message_hint or "grant it, or run pfsup migrate as the schema's owner"
    return f"cannot migrate schema {schema}: {why}; {hint}"


@contextmanager
def _opened(target: str | Connection) -> Generator[Connection]:
    """Yield an autocommit connection: our own, closed at the end, or the caller's, given back as it was."""
    if isinstance(target, str):
        with _connected(target) as conn:
            yield conn
        return
    if target.info.transaction_status != TransactionStatus.IDLE:
        raise SchemaError("cannot migrate: the connection is inside a transaction; commit it first")
    before = target.autocommit
    target.autocommit = True
    try:
        yield target
    finally:
        if not target.broken:
            target.autocommit = before


def _connected(url: str) -> Connection:
    try:
        return psycopg.connect(url, autocommit=True, application_name="pfsup:migrate")
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(
            "cannot migrate: the database cannot be reached or refuses the login;"
            " check database.migrate_url (else database.url), and that the server runs"
        ) from error
