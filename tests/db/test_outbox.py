"""pfsup.stage: the thin layer over the SQL function, on both kinds of connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pfsup
import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from support.database import Database
from support.runs import Owner


def row_of(database: Database, number: int) -> Any:
    with database.superuser() as conn:
        query = "SELECT actor, aggregate_id, payload, queue, tenant, headers, max_attempts FROM pfsup.async_dispatches"
        return conn.execute(query + " WHERE id = %s", [number]).fetchone()


def test_stage_passes_every_argument_on(database: Database) -> None:
    with psycopg.connect(database.app_url) as conn:
        staged = pfsup.stage(
            conn, "paint", "7", {"a": [1, "ü"]}, queue="slow", tenant="t", headers={"trace": "x"}, max_attempts=3
        )
    assert (staged.outcome, staged.status) == ("created", "pending")
    assert row_of(database, staged.id) == ("paint", "7", {"a": [1, "ü"]}, "slow", "t", {"trace": "x"}, 3)


async def test_stage_is_awaited_on_an_async_connection(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.app_url) as conn:
        first = await pfsup.stage(conn, "paint", "7", delivery_key="k")
        second = await pfsup.stage(conn, "paint", "7", delivery_key="k", on_conflict="keep")
        third = await pfsup.stage(conn, "paint", "7", delivery_key="k")
    assert [s.outcome for s in (first, second, third)] == ["created", "existing", "rerun"]
    assert first.id == second.id == third.id


async def test_refusal_and_rollback_are_those_of_an_async_connection_too(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.app_url) as conn:
        with pytest.raises(psycopg.Error) as refused:
            await pfsup.stage(conn, "bad name", "7")
        await conn.rollback()
        await pfsup.stage(conn, "paint", "7")
        await conn.rollback()
    assert refused.value.sqlstate == "PF400"
    with database.superuser() as conn:
        assert conn.execute("SELECT count(*) FROM pfsup.async_dispatches").fetchone() == (0,)


def test_key_of_a_dead_row_is_told_as_blocked_with_the_row(database: Database, owner: Owner) -> None:
    number = owner.sent(key="k")
    begun = owner.one("SELECT * FROM pfsup.begin_work(%s, 'paint', 'w')", number)
    owner.rows("SELECT pfsup.settle(%s, %s, 'dead')", number, begun.token)
    with psycopg.connect(database.app_url) as conn:
        staged = pfsup.stage(conn, "paint", "7", delivery_key="k")
    assert staged == pfsup.Staged(id=number, outcome="blocked", status="dead")
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 0


@pytest.mark.parametrize("row_factory", [dict_row, namedtuple_row])
def test_answer_does_not_depend_on_the_caller_s_row_factory(database: Database, row_factory: Any) -> None:
    with psycopg.connect(database.app_url, row_factory=row_factory) as conn:
        assert pfsup.stage(conn, "paint", "7").outcome == "created"


@pytest.mark.parametrize(
    ("given", "stored"),
    [(7, "7"), (UUID(int=7), "00000000-0000-0000-0000-000000000007")],
    ids=["int", "uuid"],
)
def test_aggregate_id_of_another_type_is_stored_as_its_text(database: Database, given: Any, stored: str) -> None:
    with psycopg.connect(database.app_url) as conn:
        staged = pfsup.stage(conn, "paint", given)
    assert row_of(database, staged.id)[1] == stored


def test_payload_that_json_does_not_hold_is_refused_and_the_transaction_lives(database: Database) -> None:
    with psycopg.connect(database.app_url) as conn:
        with pytest.raises(TypeError):
            pfsup.stage(conn, "paint", "7", {"a": object()})
        assert pfsup.stage(conn, "paint", "7").outcome == "created"


def test_stage_is_rolled_back_with_the_caller(database: Database) -> None:
    with psycopg.connect(database.app_url) as conn:
        pfsup.stage(conn, "paint", "7")
        conn.rollback()
    with database.superuser() as conn:
        assert conn.execute("SELECT count(*) FROM pfsup.async_dispatches").fetchone() == (0,)


@pytest.mark.parametrize(
    ("state", "arguments"),
    [
        ("PF400", {"actor": "bad name"}),
        ("PF400", {"aggregate_id": None}),
        ("PF400", {"on_conflct": "keep"}),
        ("PF409", {"delivery_key": "taken", "on_conflict": "error"}),
        ("PF413", {"payload": "x" * 300_000}),
    ],
)
def test_refusals_carry_their_sqlstate_and_the_next_step(
    database: Database, state: str, arguments: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"actor": "paint", "aggregate_id": "7"} | arguments
    with psycopg.connect(database.app_url, autocommit=True) as conn:
        pfsup.stage(conn, "paint", "1", delivery_key="taken")
        with pytest.raises(psycopg.Error) as refused:
            pfsup.stage(conn, **given)
    assert refused.value.sqlstate == state
    assert str(refused.value.diag.message_primary).startswith("cannot stage")
    assert refused.value.diag.message_hint


def test_time_without_a_zone_is_refused_and_one_with_it_is_kept(database: Database) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with psycopg.connect(database.app_url) as conn:
        with pytest.raises(pfsup.PfsupError, match="has no time zone"):
            pfsup.stage(conn, "paint", "7", available_at=due.replace(tzinfo=None))
        staged = pfsup.stage(conn, "paint", "7", available_at=due)
    with database.superuser() as conn:
        query = "SELECT available_at FROM pfsup.async_dispatches WHERE id = %s"
        assert conn.execute(query, [staged.id]).fetchone() == (due,)


def test_schema_that_is_no_name_never_reaches_sql(database: Database) -> None:
    with psycopg.connect(database.app_url) as conn, pytest.raises(pfsup.SchemaError, match="cannot use the schema"):
        pfsup.stage(conn, "paint", "7", schema="x; DROP TABLE y")
