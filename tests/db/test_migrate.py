"""migrate: what it applies, what it refuses, and that two of them, or a lock in the way, do no harm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pfsup.config.errors import DatabaseUnavailable, NotPermitted, SchemaError
from pfsup.shared.db.migrate import LATEST, ROLE_ENDINGS, current_version, migrate, standing
from pfsup.shared.db.migrations import Migration, migrations, roles_of, script
from support.database import Database
from support.programs import pg_program
from support.servers import PgServer
from support.staging import in_threads


def added(version: int, body: str, *, roles: str = "") -> Migration:
    return Migration(version=version, name=f"step_{version}", body=body, roles=roles)


def next_step(body: str = "CREATE TABLE @schema@.more (id int);") -> tuple[Migration, ...]:
    return (*migrations(), added(LATEST + 1, body))


def catalogue(database: Database) -> str:
    """The schema's definition as pg_dump writes it, without what names this run."""
    program = pg_program(database.server, "pg_dump")
    dumped = subprocess.run([program, "--schema-only", database.url], capture_output=True, text=True, check=True)
    return re.sub(r"^\\(un)?restrict .*$", "", dumped.stdout, flags=re.MULTILINE)


def owner_of(database: Database) -> psycopg.Connection[Any]:
    return psycopg.connect(database.url, autocommit=True)


@contextmanager
def own_schema(database: Database, name: str) -> Generator[psycopg.Connection[Any]]:
    """A superuser's connection; at the end the schema and its roles are gone: roles outlive a test's database."""
    with database.superuser() as superuser:
        try:
            yield superuser
        finally:
            superuser.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
            for ending in ROLE_ENDINGS:
                superuser.execute(f"DROP ROLE IF EXISTS {name}_{ending}".encode())


def tables(database: Database) -> int:
    with owner_of(database) as conn:
        row = conn.execute("SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('pfsup')").fetchone()
    assert row is not None
    return int(row[0])


def test_first_run_applies_everything_and_the_second_nothing(empty_database: Database) -> None:
    first = migrate(empty_database.url)
    second = migrate(empty_database.url)
    assert (first.before, first.after, first.applied) == (None, LATEST, tuple(m.title for m in migrations()))
    assert (second.before, second.after, second.applied, second.roles) == (LATEST, LATEST, (), False)


def test_current_version_is_none_before_and_the_latest_after(empty_database: Database) -> None:
    with owner_of(empty_database) as conn:
        assert current_version(conn, "pfsup") is None
        migrate(conn)
        assert current_version(conn, "pfsup") == LATEST


@pytest.mark.parametrize("steps", [migrations(), next_step()], ids=["shipped", "with one more"])
def test_applied_fresh_equals_applied_in_order(
    empty_database: Database, pg_server: PgServer, steps: Sequence[Migration]
) -> None:
    migrate(empty_database.url, steps=steps)
    in_order = replace(empty_database, name=pg_server.create())
    try:
        for count in range(1, len(steps) + 1):
            migrate(in_order.url, steps=steps[:count])
        assert catalogue(in_order) == catalogue(empty_database)
    finally:
        pg_server.drop(in_order.name)


def test_printed_script_run_by_psql_makes_the_same_schema(
    empty_database: Database, database: Database, short_dir: Path
) -> None:
    printed = short_dir / "migration.sql"
    printed.write_text(script(migrations(), "pfsup", roles=True))
    psql = [pg_program(empty_database.server, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(printed)]
    subprocess.run([*psql, empty_database.url], capture_output=True, text=True, check=True)
    assert catalogue(empty_database) == catalogue(database)
    assert migrate(empty_database.url).applied == ()


def test_script_of_nothing_pending_is_a_comment() -> None:
    assert script((), "pfsup", roles=True) == "-- nothing to run: schema pfsup is up to date\n"


def test_another_schema_has_its_own_functions_roles_and_channel(empty_database: Database) -> None:
    with own_schema(empty_database, "outbox_2") as superuser, owner_of(empty_database) as conn:
        migrate(empty_database.url, schema="outbox_2")
        conn.execute("LISTEN outbox_2_wake")
        conn.execute("SELECT outbox_2.stage('paint', '7')")
        assert len(list(conn.notifies(timeout=30, stop_after=1))) == 1
        found = superuser.execute("SELECT count(*) FROM pg_roles WHERE rolname LIKE 'outbox\\_2\\_%'").fetchone()
        body = superuser.execute("SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%pfsup.%'").fetchone()
        assert (found, body) == ((5,), (0,))


@pytest.mark.parametrize("name", ["", "Pfsup", "a-b", 'x"; DROP', "pg_own", "9a", "a" * 49, "a b"])
def test_schema_name_that_cannot_stand_in_sql_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="cannot use the schema name"):
        migrate("host=/nowhere", schema=name)


def test_schema_made_by_an_administrator_is_used_without_the_right_to_create_one(
    empty_database: Database, pg_server: PgServer
) -> None:
    with empty_database.superuser() as superuser:
        superuser.execute(f"ALTER DATABASE {empty_database.name} OWNER TO postgres".encode())
        superuser.execute("CREATE SCHEMA pfsup AUTHORIZATION t_owner")
    assert migrate(empty_database.url).after == LATEST


def test_missing_right_to_create_the_schema_is_said(empty_database: Database) -> None:
    with empty_database.superuser() as superuser:
        superuser.execute(f"ALTER DATABASE {empty_database.name} OWNER TO postgres".encode())
    with pytest.raises(NotPermitted, match="cannot migrate schema pfsup: permission denied for database"):
        migrate(empty_database.url)


def test_without_createrole_the_way_out_is_said_and_taken(empty_database: Database) -> None:
    with own_schema(empty_database, "lonely") as superuser:
        superuser.execute(f"ALTER DATABASE {empty_database.name} OWNER TO t_app".encode())
        with pytest.raises(NotPermitted, match=r"cannot create role lonely_stage: .*run pfsup migrate --no-roles"):
            migrate(empty_database.app_url, schema="lonely")
        report = migrate(empty_database.app_url, schema="lonely", roles=False)
        assert (report.after, report.roles) == (LATEST, False)
        superuser.execute(roles_of(migrations(), "lonely").encode())
        granted = superuser.execute(
            "SELECT has_function_privilege('lonely_stage', 'lonely.cancel(text)', 'EXECUTE')"
        ).fetchone()
        assert granted == (True,)


def test_unreachable_server_is_said_without_the_connection_string() -> None:
    with pytest.raises(DatabaseUnavailable, match="cannot be reached or refuses the login") as e:
        migrate("postgresql://someone:sesame@/x?host=/nowhere")
    assert "sesame" not in str(e.value)


def test_step_that_fails_leaves_nothing_of_itself_and_of_those_before(empty_database: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty_database.url, steps=next_step("CREATE TABLE @schema@.more (id int); SELECT 1 / 0;"))
    assert tables(empty_database) == 0


def test_newer_database_is_refused(empty_database: Database) -> None:
    migrate(empty_database.url, steps=next_step())
    with pytest.raises(SchemaError, match=rf"it has version {LATEST + 1}, this pfsup knows {LATEST}; upgrade pfsup"):
        migrate(empty_database.url)


def test_changed_text_is_reported_and_nothing_is_built_on_it(empty_database: Database) -> None:
    migrate(empty_database.url)
    edited = (replace(migrations()[0], body="-- other"), *migrations()[1:])
    assert migrate(empty_database.url, steps=edited).changed == ("0001 outbox",)
    with pytest.raises(SchemaError, match="0001 outbox was applied with another text"):
        migrate(empty_database.url, steps=(*edited, next_step()[-1]))


def test_standing_names_what_is_pending(empty_database: Database) -> None:
    with owner_of(empty_database) as conn:
        assert standing(conn, "pfsup").pending == migrations()
        migrate(conn)
        assert standing(conn, "pfsup", steps=next_step()).pending == next_step()[-1:]


def test_missing_role_is_made_again(empty_database: Database) -> None:
    with own_schema(empty_database, "again") as superuser, owner_of(empty_database) as conn:
        migrate(conn, schema="again")
        superuser.execute("DROP OWNED BY again_read")
        superuser.execute("DROP ROLE again_read")
        assert migrate(conn, schema="again").roles
        assert conn.execute("SELECT has_table_privilege('again_read', 'again.audit', 'SELECT')").fetchone() == (True,)


def test_many_at_once_apply_it_once(empty_database: Database) -> None:
    reports = in_threads([lambda: migrate(empty_database.url)] * 6)
    assert sorted(len(report.applied) for report in reports) == [0, 0, 0, 0, 0, LATEST]
    assert {report.after for report in reports} == {LATEST}


def test_lock_in_the_way_is_waited_for(database: Database) -> None:
    pauses: list[float] = []
    with owner_of(database) as holder:
        holder.execute("BEGIN; LOCK TABLE pfsup.controls IN ACCESS SHARE MODE")

        def pause(pause_s: float) -> None:
            pauses.append(pause_s)
            holder.execute("COMMIT")

        steps = next_step("ALTER TABLE @schema@.controls ADD COLUMN more text;")
        assert migrate(database.url, steps=steps, pause=pause).after == LATEST + 1
    assert len(pauses) == 1


def test_lock_that_stays_is_given_up_with_its_holders_pid(database: Database) -> None:
    with owner_of(database) as holder:
        holder.execute("BEGIN; LOCK TABLE pfsup.controls IN ACCESS SHARE MODE")
        steps = next_step("ALTER TABLE @schema@.controls ADD COLUMN more text;")
        with pytest.raises(SchemaError, match=rf"held by the session with pid {holder.info.backend_pid}; end it"):
            migrate(database.url, steps=steps, pause=lambda _: None, tries=2)
        holder.execute("COMMIT")
    with owner_of(database) as conn:
        assert current_version(conn, "pfsup") == LATEST


def test_migration_lock_of_another_is_given_up_with_its_pid(empty_database: Database) -> None:
    with owner_of(empty_database) as holder:
        holder.execute("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('pfsup migrate pfsup', 0))")
        with pytest.raises(SchemaError, match=rf"pid {holder.info.backend_pid}; end it"):
            migrate(empty_database.url, pause=lambda _: None, tries=1)


def test_given_connection_comes_back_as_it_was(empty_database: Database) -> None:
    with psycopg.connect(empty_database.url) as conn:
        migrate(conn)
        assert conn.autocommit is False
        conn.execute("SELECT 1")
        with pytest.raises(SchemaError, match="inside a transaction"):
            migrate(conn)


def test_database_that_is_not_utf8_is_refused(empty_database: Database) -> None:
    latin = f"{empty_database.name}_latin"
    with empty_database.superuser() as superuser:
        superuser.execute(f"CREATE DATABASE {latin} OWNER t_owner ENCODING 'SQL_ASCII' TEMPLATE template0".encode())
        try:
            with pytest.raises(SchemaError, match="is encoded in SQL_ASCII, wanted UTF8"):
                migrate(replace(empty_database, name=latin).url)
        finally:
            superuser.execute(f"DROP DATABASE {latin}".encode())
