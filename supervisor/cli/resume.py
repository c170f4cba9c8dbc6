"""`pfsup resume`: end a pause."""

from __future__ import annotations

import click

from .common import config_option, json_option, load, print_json
from .pause import KINDS, user


@click.command
@config_option
@json_option
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--why", required=True, help="The reason; the next person reads it in the audit.")
@click.option("--who", default=user, help="Who does this. Default: the operating system's user.")
def command(*, config_path: str | None, as_json: bool, kind: str, name: str, why: str, who: str) -> None:
    """Let KIND NAME leave again, at once. It is no error when it was not paused."""
    from .database import connected

    database = load(config_path).settings.database
    with connected(database, command="resume") as conn:
        row = conn.execute(
            f"SELECT outcome FROM {database.schema}.resume(%s, %s, %s, %s)".encode(),  # noqa: S608 - checked name
            [kind, name, who, why],
        ).fetchone()
    outcome = row[0] if row else ""
    if as_json:
        print_json({"kind": kind, "name": name, "outcome": outcome})
        return
    click.echo(f"{kind} {name}: {'resumed' if outcome == 'resumed' else 'was not paused'}")
