"""A dependency that is away is a state with a remedy, never a crash (DESIGN 3.5)."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

import psycopg
import psycopg_pool
import redis.exceptions as broker

from ...config.errors import PfsupError
from ..backoff import Backoff
from ..drain import Drain
from ..text import printable

# Looked at in order; the first pattern found in a connection failure's text names the remedy. Such a failure carries
# no SQLSTATE: the server said it before a session existed, or nobody answered.
_CONNECT_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"password authentication failed|no password supplied|role .* does not exist|not permitted to log in",
     "PostgreSQL refuses this user or password; correct [database] url or url_file"),
    (r"database .* does not exist", "the database does not exist; create it or correct [database] url"),
    (r"no pg_hba.conf entry", "pg_hba.conf has no entry for this user, database and host; add one"),
    (r"too many clients|remaining connection slots|too many connections",
     "PostgreSQL has no free connection; raise max_connections or make the pools smaller"),
    (r"starting up|shutting down|in recovery mode", "PostgreSQL is starting up or shutting down; nothing to do"),
    (r"could not translate host name|Name or service not known|failed to resolve",
     "the database's host name cannot be resolved; correct [database] url"),
    (r"Connection refused|No such file or directory|could not connect|Network is unreachable|No route to host",
     "nobody listens at the database's address; start PostgreSQL or correct [database] url"),
    (r"timeout expired|timed out", "PostgreSQL did not answer within connect_timeout; is its address right?"),
    (r"SSL|certificate", "TLS with PostgreSQL failed; check sslmode and certificates in [database] url"),
    (r"invalid connection option|missing \"=\"|invalid .*percent|invalid URI|invalid port|invalid integer value",
     "[database] url is not a connection string; correct it"),
)  # fmt: skip

_SQLSTATE_REMEDIES: dict[str, str] = {
    "3F000": "schema is missing, run: pfsup migrate",
    "42P01": "schema is missing or older than this version, run: pfsup migrate",
    "42883": "schema is missing or older than this version, run: pfsup migrate",
    "42703": "schema is older or newer than this version, run: pfsup migrate",
    "42501": "this role lacks a right; GRANT it the role <schema>_run, which pfsup migrate makes",
    "28P01": "PostgreSQL refuses the password; correct [database] url or url_file",
    "28000": "PostgreSQL refuses this user; correct [database] url or pg_hba.conf",
    "3D000": "the database does not exist; create it or correct [database] url",
    "53300": "PostgreSQL has no free connection; raise max_connections or make the pools smaller",
    "53100": "the database's disk is full; make room",
    "25006": "the database is read only (a standby?); point [database] url at the primary",
    "57014": "a statement took longer than [database] statement_timeout; look for what it waits for",
    "55P03": "a lock was not free within [database] lock_timeout; look for who holds it",
    "57P01": "PostgreSQL ended the connection; it is tried again",
    "57P02": "PostgreSQL restarts after a crash; nothing to do",
    "57P03": "PostgreSQL is starting up or shutting down; nothing to do",
}

# Looked at in order: the first kinds are subclasses of ConnectionError.
_BROKER_REMEDIES: dict[type[Exception], str] = {
    broker.AuthenticationError: "Redis refuses this user or password; correct [redis] url or url_file",
    broker.AuthorizationError: "Redis refuses this user or password; correct [redis] url or url_file",
    broker.BusyLoadingError: "Redis is loading its data; nothing to do",
    broker.TimeoutError: "Redis did not answer within [redis] socket_timeout; is it up and reachable?",
    broker.OutOfMemoryError: "Redis is out of memory (maxmemory); make room or raise it",
    broker.ReadOnlyError: "this Redis is a read-only replica; point [redis] url at the primary",
    broker.ConnectionError: "cannot reach Redis; start it or correct [redis] url",
}


class Waiter(Protocol):
    """The part of a child's Link that waiting needs."""

    @property
    def drain(self) -> Drain: ...

    def waiting(self, reason: str | None) -> None: ...


async def until_ready(link: Waiter, check: Callable[[], Awaitable[None]], *, cap_s: float = 5.0) -> bool:
    """Call `check` until it passes, with back-off from 0.1 s to `cap_s`; meanwhile the link waits, with the remedy.

    Returns True when the check has passed, False when a drain was asked for first. Only failures of a dependency
    (`is_away`) are waited for; anything else is ours and is raised.
    """
    backoff = Backoff(0.1, cap_s, rng=random.Random())  # noqa: S311 - spreads retries, guards nothing
    while not link.drain.requested:
        try:
            await check()
        except Exception as error:
            if not is_away(error):
                raise
            link.waiting(remedy(error))
        else:
            link.waiting(None)
            return True
        await drained_within(link.drain, backoff.next_s())
    return False


async def drained_within(drain: Drain, wait_s: float) -> bool:
    """Wait `wait_s` seconds, less when the drain is asked for; True in that case."""
    try:
        await asyncio.wait_for(drain.wait(), wait_s)
    except TimeoutError:
        return False
    return True


def is_away(error: BaseException) -> bool:
    """True for what a dependency can do to us: unreachable, refusing, unmigrated, slow. False for faults of ours."""
    if isinstance(error, PfsupError | psycopg.OperationalError | psycopg_pool.PoolTimeout | broker.RedisError):
        return True
    if isinstance(error, psycopg.Error):
        return error.sqlstate in _SQLSTATE_REMEDIES
    return isinstance(error, OSError)


def remedy(error: BaseException) -> str:
    """What is missing and the next step, in one safe line. Holds no connection string, user input or payload."""
    match error:
        case PfsupError():
            said = str(error)
        case psycopg_pool.PoolTimeout():
            said = "no database connection became free within [database] connect_timeout; is PostgreSQL up?"
        case psycopg.Error(sqlstate="42501" as state):  # the server names the table or function, nothing else
            said = f"{error.diag.message_primary}: {_SQLSTATE_REMEDIES[state]}"
        case psycopg.Error(sqlstate=str(state)) if state in _SQLSTATE_REMEDIES:
            said = _SQLSTATE_REMEDIES[state]
        case psycopg.Error():
            said = _connection_remedy(error)
        case broker.RedisError():
            said = broker_remedy(error)
        case TimeoutError():
            said = "PostgreSQL did not answer in time; is it up and reachable?"
        case _:
            said = f"cannot go on: {type(error).__name__}: {error}"
    return printable(said, limit=300)


def broker_remedy(error: BaseException) -> str:
    """The same for a failure of the broker. Redis's own words name commands and keys, never a password."""
    for kind, said in _BROKER_REMEDIES.items():
        if isinstance(error, kind):
            return said
    return f"Redis refuses: {printable(str(error), limit=160)}"


def _connection_remedy(error: psycopg.Error) -> str:
    text = str(error)
    for pattern, said in _CONNECT_REMEDIES:
        if re.search(pattern, text, re.IGNORECASE):
            return said
    # Only the kind: the text of a connection failure can quote the connection string.
    return f"PostgreSQL cannot be used ({type(error).__name__}{f' {error.sqlstate}' if error.sqlstate else ''})"
