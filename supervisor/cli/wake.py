"""`pfsup wake [NAME]`: look at the database now."""

from __future__ import annotations

import click

from .address import control_path
from .client import ask
from .common import config_option


@click.command("wake")
@click.argument("name", default="dispatch")
@config_option
def command(name: str, config_path: str | None) -> None:
    """Wake a child (default: dispatch): it looks for work now instead of at its next tick."""
    ask(control_path(config_path), "wake", name=name)
