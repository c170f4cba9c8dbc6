"""One connection for one command, and the server's errors as ours: a sentence, the next step, the exit code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from ...config.errors import DatabaseUnavailable, NotPermitted, PfsupError, SchemaError
from ...shared.text import printable

if TYPE_CHECKING:
    from ...config.values import Database

Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def connected(database: Database, *, command: str, url: str | None = None) -> Generator[Connection]:
    """Yield a pinned autocommit connection for `pfsup <command>`; a failure leaves as a PfsupError with the next step.

    The text never holds the connection string. Exit codes: 75 the database is away or has no schema of this version,
    77 the role may not, 1 the call was refused.
    """
    from ...shared.db.connect import connect

    try:
        with connect(database, application_name=f"pfsup:{command}", url=url, autocommit=True) as conn:
            yield conn
    except psycopg.Error as error:
        raise told(error, command=command) from error


def told(error: psycopg.Error, *, command: str) -> PfsupError:
    """The error of ours that stands for the server's."""
    from ...shared.db.ready import remedy

    state = error.sqlstate or ""
    match error:
        case _ if state.startswith("PF"):
            return PfsupError(_primary(error))
        case errors.InsufficientPrivilege():
            return NotPermitted(
                f"cannot {command}: {_primary(error)}; connect as a role that may, or GRANT this one the role it needs"
            )
        case errors.InvalidSchemaName() | errors.UndefinedTable() | errors.UndefinedFunction():
            return SchemaError(f"cannot {command}: {remedy(error)}")
        case psycopg.OperationalError():
            return DatabaseUnavailable(f"cannot {command}: {remedy(error)}")
        case _:
            return PfsupError(f"cannot {command}: {_primary(error)}")


def _primary(error: psycopg.Error) -> str:
    parts = (error.diag.message_primary or type(error).__name__, error.diag.message_hint)
    return "; ".join(printable(part) for part in parts if part)
