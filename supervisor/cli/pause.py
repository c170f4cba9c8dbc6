"""`pfsup pause`: nothing new of an actor, queue, tenant or domain leaves, in the whole cluster."""

from __future__ import annotations

import getpass
from datetime import datetime, timedelta

import click

from .common import config_option, json_option, load, print_json

KINDS = ("actor", "queue", "tenant", "domain")


def user() -> str:
    """Who runs this command, by the operating system; a number where it has no name."""
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


class Until(click.ParamType[datetime | timedelta]):
    """A time with its zone (2026-11-30T18:00+01:00), or a duration from the database's now (90s, 15m, 2h, 1d)."""

    name = "time or duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime | timedelta:
        """The moment meant; fails with exit code 2 when it is neither, or has no zone."""
        text = str(value)
        unit_s = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:])
        if unit_s and text[:-1].isdecimal() and len(text) <= 10:
            return timedelta(seconds=int(text[:-1]) * unit_s)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither a time such as 2026-11-30T18:00Z nor a duration such as 15m", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{text!r} has no time zone; write 2026-11-30T18:00Z or 2026-11-30T18:00+01:00", param, ctx)
        return moment


def _moment(until: datetime | timedelta | None) -> tuple[datetime | None, timedelta | None]:
    return (until, None) if isinstance(until, datetime) else (None, until)


@click.command
@config_option
@json_option
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.option("--why", required=True, help="The reason; the next person reads it in the audit.")
@click.option("--who", default=user, help="Who does this. Default: the operating system's user.")
@click.option("--until", type=Until(), help="When it ends by itself: a time with its zone, or 90s, 15m, 2h, 1d.")
def command(
    *,
    config_path: str | None,
    as_json: bool,
    kind: str,
    name: str,
    why: str,
    who: str,
    until: datetime | timedelta | None,
) -> None:
    """Let nothing new of KIND NAME leave until --until or `pfsup resume`. What runs is not touched."""
    from .database import connected

    database = load(config_path).settings.database
    with connected(database, command="pause") as conn:
        row = conn.execute(
            f"SELECT outcome, until FROM {database.schema}.pause(%s, %s, %s, %s,"  # noqa: S608 - checked name
            " coalesce(%s::timestamptz, clock_timestamp() + %s::interval))".encode(),
            [kind, name, who, why, *_moment(until)],
        ).fetchone()
    outcome, ends_at = row or ("", None)
    if as_json:
        print_json({"kind": kind, "name": name, "outcome": outcome, "until": ends_at})
        return
    ending = f"until {ends_at.isoformat(timespec='seconds')}" if ends_at else "until pfsup resume"
    click.echo(f"{kind} {name}: {'paused' if outcome == 'paused' else 'still paused, now'} {ending}")
