"""`pfsup migrate`: install or upgrade the schema, and reference tables where they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...config.errors import PfsupError
from .common import config_option, json_option, load, print_json

if TYPE_CHECKING:
    from ...config.values import Database, Settings
    from ...shared.db.migrate import Report, Standing
    from ...shared.db.migrations import Migration
    from .database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Migrations and the schema they go to; `extra` names reference tables, pfsup's own tree has none."""

    schema: str
    steps: tuple[Migration, ...]
    extra: str = ""


@click.command
@config_option
@json_option
@click.option("--sql", "wanted", flag_value="sql", help="Print the SQL that would run, and run nothing.")
@click.option("--status", "wanted", flag_value="status", help="Print the schema's version and what is pending.")
@click.option("--no-roles", is_flag=True, help="Create no roles; print the statements for an administrator instead.")
@click.option("--with", "extras", multiple=True, metavar="NAME", help="Reference tables too: productflow.")
def command(
    *, config_path: str | None, as_json: bool, wanted: str | None, no_roles: bool, extras: tuple[str, ...]
) -> None:
    """Bring the database's schema to this version. A second run changes nothing.

    Connects with [database] migrate_url, else url. Needs no superuser: the right to create a schema in the database,
    and CREATEROLE unless the roles exist or --no-roles is given. --with productflow makes the tables of the built-in
    recovery domains after it, in the schema that their sections name, in a transaction of their own.
    """
    _check_extras(extras)
    settings = load(config_path).settings
    trees = tuple(_trees(settings, extras))
    with _opened(settings.database) as conn:
        match wanted:
            case "sql":
                _print_sql(conn, trees, roles=not no_roles)
            case "status":
                _print_status(conn, trees, as_json=as_json)
            case _:
                _migrate(conn, trees, as_json=as_json, roles=not no_roles)


def _check_extras(extras: tuple[str, ...]) -> None:
    from ...shared.db.migrations import EXTRAS

    for name in extras:
        if name not in EXTRAS:
            raise PfsupError(f"cannot migrate with {name[:80]!r}: no tables have that name; there is {_listed(EXTRAS)}")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _trees(settings: Settings, extras: tuple[str, ...]) -> Iterator[Tree]:
    """Yield pfsup's own tree, whose roles the others grant to, then each of the extras once."""
    from ...shared.db.migrations import migrations, reference_tables
    from .reference import reference_schema

    outbox = settings.database.schema
    yield Tree(schema=outbox, steps=migrations())
    for name in dict.fromkeys(extras):
        yield Tree(schema=reference_schema(settings), steps=reference_tables(name, outbox=outbox), extra=name)


def _opened(database: Database) -> AbstractContextManager[Connection]:
    from ...config.secrets import secret
    from .database import connected

    url = secret(database.migrate_url, database.migrate_url_file) or None
    return connected(database, command="migrate", url=url)


def _standing(conn: Connection, tree: Tree) -> Standing:
    from ...shared.db.migrate import standing

    return standing(conn, tree.schema, steps=tree.steps)


def _print_sql(conn: Connection, trees: tuple[Tree, ...], *, roles: bool) -> None:
    from ...shared.db.migrations import script

    for tree in trees:
        click.echo(script(_standing(conn, tree).pending, tree.schema, roles=roles), nl=False)


def _print_status(conn: Connection, trees: tuple[Tree, ...], *, as_json: bool) -> None:
    found = [(tree, _standing(conn, tree)) for tree in trees]
    if as_json:
        _print_trees([(tree, _status_fields(tree, standing)) for tree, standing in found])
        return
    for tree, standing in found:
        pending = ", ".join(migration.title for migration in standing.pending)
        version = "not installed" if standing.version is None else f"version {standing.version}"
        click.echo(f"schema {tree.schema}: {version}; pending: {pending or 'nothing'}")
        _warn_changed(tree.schema, standing.changed)


def _status_fields(tree: Tree, standing: Standing) -> dict[str, Any]:
    return {
        "database_schema": tree.schema,
        "version": standing.version,
        "pending": [migration.title for migration in standing.pending],
        "changed": list(standing.changed),
    }


def _migrate(conn: Connection, trees: tuple[Tree, ...], *, as_json: bool, roles: bool) -> None:
    from ...shared.db.migrate import migrate
    from ...shared.db.migrations import roles_of

    done: list[tuple[Tree, dict[str, Any]]] = []
    for tree in trees:
        report = migrate(conn, schema=tree.schema, roles=roles, steps=tree.steps)
        grants = "" if roles else roles_of(tree.steps, tree.schema)
        _warn_changed(tree.schema, report.changed)
        done.append((tree, _report_fields(report, grants)))
        if not as_json:
            _say(report, grants)
    if as_json:
        _print_trees(done)


def _say(report: Report, grants: str) -> None:
    # With --no-roles standard output holds the statements alone, so that it can be piped into an administrator's psql.
    click.echo(_said(report), err=bool(grants))
    click.echo(grants, nl=False)


def _report_fields(report: Report, grants: str) -> dict[str, Any]:
    return {
        "database_schema": report.schema,
        "before": report.before,
        "version": report.after,
        "applied": list(report.applied),
        "changed": list(report.changed),
        "roles": report.roles,
        "grants": grants or None,
    }


def _print_trees(told: list[tuple[Tree, dict[str, Any]]]) -> None:
    """Print pfsup's own fields, and under `with` those of each of the extras that were asked for."""
    (_, own), *others = told
    print_json({**own, "with": {tree.extra: fields for tree, fields in others}} if others else own)


def _said(report: Report) -> str:
    if report.applied:
        return f"schema {report.schema}: applied {', '.join(report.applied)}; version {report.after}"
    if report.roles:
        return f"schema {report.schema}: roles and grants written; version {report.after}"
    return f"schema {report.schema}: nothing to do; version {report.after}"


def _warn_changed(schema: str, changed: tuple[str, ...]) -> None:
    for title in changed:
        click.echo(f"warning: schema {schema}: {title} was applied with another text than this version ships", err=True)
