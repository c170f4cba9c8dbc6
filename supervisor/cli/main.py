"""The command line: one file a command, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from ...config.errors import EXIT_INTERNAL, PfsupError
from .common import complain

# Each is a file beside this one that holds it, as `command`.
COMMANDS = (
    "check",
    "config",
    "demo",
    "dev",
    "disable",
    "enable",
    "migrate",
    "pause",
    "probe",
    "restart",
    "resume",
    "start",
    "status",
    "stop",
    "wake",
)


class Commands(click.Group):
    """Finds a command by name without importing the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`, or None."""
        return import_module(f".{cmd_name}", __package__).command if cmd_name in COMMANDS else None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pfsup")
def pfsup() -> None:
    """Move committed work from PostgreSQL to Redis, and settle what got stuck."""


def run(argv: list[str]) -> int:
    """Run the command in `argv` and return its exit code. No traceback reaches the user for a known error."""
    try:
        result = pfsup.main(args=argv, prog_name="pfsup", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PfsupError as error:
        return complain(error)
    except BrokenPipeError:
        return EXIT_INTERNAL
    return result if isinstance(result, int) else 0
