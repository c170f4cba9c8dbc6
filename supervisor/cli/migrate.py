"""`pfsup migrate`: install or upgrade the schema."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from ...config.errors import PfsupError
from .common import config_option, json_option, load, print_json

if TYPE_CHECKING:
    from ...config.values import Database
    from ...shared.db.migrate import Report, Standing
    from .database import Connection


@click.command
@config_option
@json_option
@click.option("--sql", "wanted", flag_value="sql", help="Print the SQL that would run, and run nothing.")
@click.option("--status", "wanted", flag_value="status", help="Print the schema's version and what is pending.")
@click.option("--no-roles", is_flag=True, help="Create no roles; print the statements for an administrator instead.")
@click.option("--with", "extras", multiple=True, metavar="NAME", help="Optional tables (none in this version).")
def command(
    *, config_path: str | None, as_json: bool, wanted: str | None, no_roles: bool, extras: tuple[str, ...]
) -> None:
    """Bring the database's schema to this version. A second run changes nothing.

    Connects with [database] migrate_url, else url. Needs no superuser: the right to create a schema in the database,
    and CREATEROLE unless the roles exist or --no-roles is given.
    """
    if extras:
        raise PfsupError(f"cannot migrate with {', '.join(extras)}: not available in this version")
    database = load(config_path).settings.database
    match wanted:
        case "sql":
            _print_sql(database, roles=not no_roles)
        case "status":
            _print_status(database, as_json=as_json)
        case _:
            _migrate(database, as_json=as_json, roles=not no_roles)


def _opened(database: Database) -> AbstractContextManager[Connection]:
    from ...config.secrets import secret
    from .database import connected

    url = secret(database.migrate_url, database.migrate_url_file) or None
    return connected(database, command="migrate", url=url)


def _standing(conn: Connection, database: Database) -> Standing:
    from ...shared.db.migrate import standing

    return standing(conn, database.schema)


def _print_sql(database: Database, *, roles: bool) -> None:
    from ...shared.db.migrations import script

    with _opened(database) as conn:
        found = _standing(conn, database)
    click.echo(script(found.pending, database.schema, roles=roles), nl=False)


def _print_status(database: Database, *, as_json: bool) -> None:
    with _opened(database) as conn:
        found = _standing(conn, database)
    pending = [migration.title for migration in found.pending]
    if as_json:
        print_json(
            {
                "database_schema": database.schema,
                "version": found.version,
                "pending": pending,
                "changed": list(found.changed),
            }
        )
        return
    version = "not installed" if found.version is None else f"version {found.version}"
    click.echo(f"schema {database.schema}: {version}; pending: {', '.join(pending) or 'nothing'}")
    _warn_changed(database.schema, found.changed)


def _migrate(database: Database, *, as_json: bool, roles: bool) -> None:
    from ...shared.db.migrate import migrate
    from ...shared.db.migrations import migrations, roles_of

    with _opened(database) as conn:
        report = migrate(conn, schema=database.schema, roles=roles)
    grants = "" if roles else roles_of(migrations(), database.schema)
    _warn_changed(database.schema, report.changed)
    if as_json:
        _print_report(report, grants)
        return
    # With --no-roles standard output holds the statements alone, so that it can be piped into an administrator's psql.
    click.echo(_said(report), err=not roles)
    click.echo(grants, nl=False)


def _print_report(report: Report, grants: str) -> None:
    print_json(
        {
            "database_schema": report.schema,
            "before": report.before,
            "version": report.after,
            "applied": list(report.applied),
            "changed": list(report.changed),
            "roles": report.roles,
            "grants": grants or None,
        }
    )


def _said(report: Report) -> str:
    if report.applied:
        return f"schema {report.schema}: applied {', '.join(report.applied)}; version {report.after}"
    if report.roles:
        return f"schema {report.schema}: roles and grants written; version {report.after}"
    return f"schema {report.schema}: nothing to do; version {report.after}"


def _warn_changed(schema: str, changed: tuple[str, ...]) -> None:
    for title in changed:
        click.echo(f"warning: schema {schema}: {title} was applied with another text than this version ships", err=True)
