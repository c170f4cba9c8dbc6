"""`pfsup config`: every key, its value, and where the value came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .common import config_option, json_option, load, print_json

if TYPE_CHECKING:
    from ...config.load import Loaded


@click.command
@config_option
@json_option
def command(*, config_path: str | None, as_json: bool) -> None:
    """Print every setting with its value and origin. Passwords are masked.

    The origin is default, FILE:LINE, or the environment variable's name.
    """
    loaded = load(config_path)
    if as_json:
        print_json({"file": str(loaded.path) if loaded.path else None, "settings": _rows(loaded)})
        return
    click.echo(f"# file: {loaded.path or 'none found'}")
    lines = [(f"{row['key']} = {row['written']}", row["origin"]) for row in _rows(loaded)]
    width = min(60, max(len(line) for line, _ in lines))
    for line, origin in lines:
        click.echo(f"{line:<{width}}  # {origin}")


def _rows(loaded: Loaded) -> list[dict[str, Any]]:
    """One object a key: `value` as JSON (durations with their unit), `written` as TOML."""
    from ...config import fields
    from ...config.faults import told
    from ...config.secrets import masked

    rows: list[dict[str, Any]] = []
    for path, key, value in fields.leaves(loaded.settings):
        shown = masked(value) if key.rule.secret else value
        name, written = fields.dotted(*path), told(key, shown)
        json_value = written.strip('"') if key.kind == fields.SECONDS else shown
        rows.append({"key": name, "value": json_value, "written": written, "origin": loaded.origins[name]})
    return rows
