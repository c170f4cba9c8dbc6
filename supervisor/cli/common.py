"""What every command shares: the configuration option, JSON output, and how a failure is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
import orjson

from ...config.errors import PfsupError

if TYPE_CHECKING:
    from ...config.load import Loaded

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    metavar="FILE",
    help="Configuration file. Default: $PFSUP_CONFIG, ./pfsup.toml, /etc/pfsup/pfsup.toml.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def load(config_path: str | None) -> Loaded:
    """The checked configuration; raises ConfigError with every problem."""
    from ...config.load import load as load_settings  # pydantic takes 80 ms: only commands that need it pay

    return load_settings(config_path)


def print_json(fields: Mapping[str, Any]) -> None:
    """Print one JSON object on one line; `schema` tells readers which shape this is."""
    print(orjson.dumps({"schema": 1, **fields}, option=orjson.OPT_NON_STR_KEYS).decode(), flush=True)


def complain(error: PfsupError) -> int:
    """Write the error to standard error and return the exit code it asks for."""
    complain_of(str(error))
    return error.exit_code


def complain_of(text: str) -> None:
    """Write one complaint to standard error; nowhere when that is closed."""
    print(f"pfsup: {text}", file=sys.stderr)


def fail(error: PfsupError) -> None:
    """Write the error to standard error and leave with its exit code."""
    sys.exit(complain(error))
