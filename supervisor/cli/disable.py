"""`pfsup disable NAME`: at run time only."""

from __future__ import annotations

import click

from .address import control_path
from .client import ask
from .common import config_option


@click.command("disable")
@click.argument("name")
@config_option
def command(name: str, config_path: str | None) -> None:
    """Drain a child and keep it down until it is enabled, or the supervisor restarts."""
    ask(control_path(config_path), "disable", name=name)
