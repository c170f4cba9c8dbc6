"""Who may do what: each role its own functions, readers the views, a stranger nothing; and nobody shadows ours."""

from __future__ import annotations

from collections.abc import Generator

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from support.database import Database
from support.runs import Owner, Session
from support.staging import App

READERS = ("read", "operate")
VIEWS = {"dispatches", "backlog", "audit", "recovery"}
# What each role may execute. A function that is missing here is nobody's but the owner's.
FUNCTIONS = {
    "stage": {"stage", "stage_many", "cancel"},
    "work": {"begin_work", "beat", "effect", "settle", "report_late"},
    "operate": {"retry", "discard", "settle_unknown", "resend", "release", "pause", "resume"},
    "read": set[str](),
}
PUBLIC_CONTRACT = set[str]().union(*FUNCTIONS.values())


@pytest.fixture
def stranger(database: Database) -> Generator[Session]:
    """A login without any role of ours."""
    with database.superuser() as superuser:
        superuser.execute("CREATE ROLE t_stranger LOGIN NOSUPERUSER")
        try:
            url = database.server.url(database.name, "t_stranger")
            with psycopg.connect(url, autocommit=True, row_factory=namedtuple_row) as conn:
                yield Session(conn)
        finally:
            superuser.execute("DROP ROLE t_stranger")


def executable(owner: Owner, role: str) -> set[str]:
    found = owner.rows(
        "SELECT DISTINCT p.proname FROM pg_proc p WHERE p.pronamespace = 'pfsup'::regnamespace"
        " AND has_function_privilege(%s, p.oid, 'EXECUTE')",
        role,
    )
    return {row.proname for row in found}


@pytest.mark.parametrize("role", FUNCTIONS)
def test_role_executes_its_own_functions_and_nothing_else(owner: Owner, role: str) -> None:
    assert executable(owner, f"pfsup_{role}") == FUNCTIONS[role]


def test_supervisors_role_executes_nothing_of_the_other_roles(owner: Owner) -> None:
    granted = executable(owner, "pfsup_run")
    assert granted & PUBLIC_CONTRACT == set()
    assert {"claim_due", "mark_sent", "redispatch"} <= granted


@pytest.mark.parametrize("role", ["stage", "work", "operate", "read"])
def test_role_reads_the_contract_and_touches_no_table(owner: Owner, role: str) -> None:
    found = owner.rows(
        "SELECT c.relname, p.privilege FROM pg_class c,"
        " unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p (privilege)"
        " WHERE c.relnamespace = 'pfsup'::regnamespace AND c.relkind IN ('r', 'v')"
        " AND has_table_privilege(%s, c.oid, p.privilege)",
        f"pfsup_{role}",
    )
    seen = VIEWS if role in READERS else set[str]()
    assert {tuple(row) for row in found} == {(name, "SELECT") for name in {"schema_migrations", *seen}}


def test_function_that_a_role_may_execute_is_security_definer_with_a_pinned_path(owner: Owner) -> None:
    found = owner.rows(
        "SELECT p.oid::regprocedure::text AS name, p.prosecdef, p.proconfig FROM pg_proc p"
        " WHERE p.pronamespace = 'pfsup'::regnamespace AND EXISTS (SELECT FROM pg_roles r"
        " WHERE r.rolname LIKE 'pfsup\\_%%' AND has_function_privilege(r.oid, p.oid, 'EXECUTE'))"
    )
    loose = [
        row.name
        for row in found
        if not row.prosecdef
        or not any(setting.startswith("search_path=pg_catalog, pfsup, pg_temp") for setting in row.proconfig or ())
    ]
    assert loose == []
    assert len(found) > len(PUBLIC_CONTRACT)


def test_nothing_is_granted_to_everybody(owner: Owner) -> None:
    functions = owner.rows(
        "SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
        " WHERE p.pronamespace = 'pfsup'::regnamespace AND a.grantee = 0"
    )
    relations = owner.rows(
        "SELECT c.relname FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace = 'pfsup'::regnamespace AND a.grantee = 0"
    )
    assert (functions, relations) == ([], [])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT pfsup.stage('paint', '7')",
        "SELECT pfsup.cancel('k')",
        "SELECT * FROM pfsup.dispatches",
        "SELECT * FROM pfsup.async_dispatches",
        "SELECT pfsup.pause('queue', 'q', 'me', 'why')",
    ],
)
def test_stranger_may_do_nothing(stranger: Session, query: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema pfsup"):
        stranger.rows(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT pfsup.begin_work(1, 'paint', 'w', '30 s')",
        "SELECT pfsup.settle(1, gen_random_uuid(), 'consumed')",
        "SELECT pfsup.retry(1, 'me', 'why')",
        "SELECT pfsup.stage_wishes('k')",
        "SELECT pfsup.take_wishes('k')",
        "SELECT * FROM pfsup.dispatches",
        "DELETE FROM pfsup.async_dispatches",
        "INSERT INTO pfsup.restaged (delivery_key, actor, aggregate_id) VALUES ('k', 'a', '1')",
    ],
)
def test_application_is_refused_whatever_is_not_staging(app: App, query: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        app.rows(query)


def test_temporary_tables_of_the_caller_cannot_shadow_ours(owner: Owner, app: App) -> None:
    app.rows("CREATE TEMPORARY TABLE async_dispatches (LIKE pg_class)")
    app.rows("CREATE TEMPORARY TABLE actors (name text, queue text, completion text, max_attempts int)")
    app.rows("CREATE TEMPORARY TABLE restaged (delivery_key text)")
    app.rows("INSERT INTO actors VALUES ('paint', 'stolen', 'handover', 1)")
    app.rows("SET search_path = pg_temp, pfsup, pg_catalog")
    number = app.stage(key="k").id
    app.stage(key="k")
    assert owner.row(number).queue == "paint"
    assert owner.value("SELECT count(*) FROM pfsup.restaged") == 1
    assert app.value("SELECT count(*) FROM pg_temp.restaged") == 0


def test_functions_operators_and_types_of_the_caller_cannot_shadow_ours(
    database: Database, owner: Owner, app: App
) -> None:
    with database.superuser() as superuser:
        superuser.execute("CREATE SCHEMA trap AUTHORIZATION t_app")
    app.rows(
        "CREATE FUNCTION trap.caught(text, text) RETURNS boolean LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'caught as %%', current_user; END $$"
    )
    app.rows("CREATE OPERATOR trap.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.caught)")
    app.rows("CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.caught)")
    app.rows(
        "CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE EXCEPTION 'caught as %%', current_user; END $$"
    )
    app.rows("SET search_path = trap, pg_catalog")
    number = app.stage(key="k").id
    app.stage(key="k", tenant="acme")
    assert app.cancel("k")[:] == (number, "cancelled")
    assert owner.status(number) == "cancelled"


def test_views_hide_payload_and_token(owner: Owner) -> None:
    found = owner.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'pfsup' AND table_name = 'dispatches'"
    )
    columns = {row.column_name for row in found}
    assert not columns & {"payload", "lease_token", "settled_token"}
    assert {"id", "status", "headers", "last_error"} <= columns


def test_reader_sees_the_backlog_by_queue_tenant_and_status(database: Database, app: App) -> None:
    app.stage(tenant="acme")
    app.stage(tenant="acme")
    app.cancel(app.stage().id)
    with psycopg.connect(database.read_url) as conn:
        rows = conn.execute("SELECT queue, tenant, status, count, oldest <= now() FROM pfsup.backlog").fetchall()
    assert rows == [("paint", "acme", "pending", 2, True)]
