"""`pfsup enable NAME`: at run time only."""

from __future__ import annotations

import click

from .address import control_path
from .client import ask
from .common import config_option


@click.command("enable")
@click.argument("name")
@config_option
def command(name: str, config_path: str | None) -> None:
    """Let a disabled child run again."""
    ask(control_path(config_path), "enable", name=name)
