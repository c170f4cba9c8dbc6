"""`pfsup restart NAME`: at run time only."""

from __future__ import annotations

import click

from .address import control_path
from .client import ask
from .common import config_option


@click.command("restart")
@click.argument("name")
@config_option
def command(name: str, config_path: str | None) -> None:
    """Drain a child, then start it again at once."""
    ask(control_path(config_path), "restart", name=name)
