"""Stage work from Python: one call in the transaction that the work belongs to (DESIGN 3.6)."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload

import orjson
import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..config.errors import PfsupError
from .db.schema_name import checked_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What stage() did. `id` and `status` are those of the live envelope.

    `outcome`: created · rerun (a live one exists, another run follows it) · existing (on_conflict = keep: no second
    run) · blocked (the live one is dead or unknown: a person decides first, nothing was written).
    """

    id: int
    outcome: str
    status: str


@overload
def stage(
    conn: psycopg.Connection[Any],
    actor: str,
    aggregate_id: str,
    payload: Any = None,
    *,
    available_at: datetime | None = None,
    delivery_key: str | None = None,
    schema: str = "pfsup",
    **options: Any,
) -> Staged: ...
@overload
def stage(
    conn: psycopg.AsyncConnection[Any],
    actor: str,
    aggregate_id: str,
    payload: Any = None,
    *,
    available_at: datetime | None = None,
    delivery_key: str | None = None,
    schema: str = "pfsup",
    **options: Any,
) -> Awaitable[Staged]: ...
def stage(
    conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
    actor: str,
    aggregate_id: str,
    payload: Any = None,
    *,
    available_at: datetime | None = None,
    delivery_key: str | None = None,
    schema: str = "pfsup",
    **options: Any,
) -> Staged | Awaitable[Staged]:
    """A run of `actor` begins after the caller's commit, and only after it. Await it on an AsyncConnection.

    `payload` is anything JSON holds, up to 256 KiB. `delivery_key`: at most one live envelope has it; another stage()
    of a live key asks for one more run after the present one. `options`: on_conflict (rerun | keep | error), queue,
    tenant, headers, max_attempts. Fails with psycopg.Error of SQLSTATE PF400 (an argument), PF409 (the key is taken and
    on_conflict is error) or PF413 (too large); above READ COMMITTED also 40001: try the transaction again.
    """
    if available_at is not None and available_at.tzinfo is None:
        raise PfsupError(
            "cannot stage: available_at has no time zone; pass an aware datetime, such as datetime.now(UTC)"
        )
    query = (
        f"SELECT id, outcome, status FROM {checked_schema(schema)}.stage("  # noqa: S608 - checked name
        "%s::text, %s::text, %s::jsonb, %s::timestamptz, %s::text, %s::jsonb)"
    ).encode()
    params = (actor, _text(aggregate_id), _json(payload), available_at, delivery_key, _json(options))
    if isinstance(conn, psycopg.AsyncConnection):
        return _stage_async(conn, query, params)
    with conn.cursor(row_factory=class_row(Staged)) as cursor:
        return _one(cursor.execute(query, params).fetchone())


async def _stage_async(conn: psycopg.AsyncConnection[Any], query: bytes, params: tuple[Any, ...]) -> Staged:
    async with conn.cursor(row_factory=class_row(Staged)) as cursor:
        await cursor.execute(query, params)
        return _one(await cursor.fetchone())


def _one(row: Staged | None) -> Staged:
    if row is None:  # a set-returning function of ours always answers one row
        raise PfsupError("cannot stage: the database answered no row")
    return row


def _text(value: object) -> str | None:
    # None (an object whose id is not assigned yet) is the database's to refuse, not the text 'None'.
    return None if value is None else str(value)


def _json(value: Any) -> Jsonb | None:
    return None if value is None else Jsonb(value, dumps=orjson.dumps)
