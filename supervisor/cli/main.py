"""The command line: one file a command, imported when it is called."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module

import click

from ...config.errors import EXIT_FAILED, EXIT_INTERNAL, EXIT_OK, PfsupError
from ...shared.text import printable
from .common import complain, complain_of

EXIT_INTERRUPTED = 130

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
    """Run the command in `argv` and return its exit code. No traceback reaches the user."""
    try:
        return _run(argv)
    except PfsupError as error:
        return complain(error)
    except OSError as error:
        return _refused(error)
    except Exception as error:
        return _our_fault(error)


def _run(argv: list[str]) -> int:
    try:
        result = pfsup.main(args=argv, prog_name="pfsup", standalone_mode=False)
        _flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return result if isinstance(result, int) else EXIT_OK


def _flush() -> None:
    """What cannot be written is told by us; the interpreter's own last flush would tell it with a traceback."""
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is None when descriptor 1 is closed
        sys.stdout.flush()


def _refused(error: OSError) -> int:
    """The system's word, for instance of a full disk behind standard output. Not of a reader that has seen enough."""
    if not isinstance(error, BrokenPipeError):
        place = f" ({printable(str(error.filename))})" if error.filename else ""
        complain_of(f"cannot finish: {error.strerror or type(error).__name__}{place}")
    try:
        _flush()
    except OSError:
        _drop_output()
    return EXIT_FAILED


def _drop_output() -> None:
    """Let what is still buffered go nowhere, so that leaving does not fail as well."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _our_fault(error: Exception) -> int:
    """One line that a report can be made of: what, and where. Its text may hold anything, so it is not shown."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.name} in {os.path.basename(last.filename)}:{last.lineno}"  # noqa: PTH119 - text, not a path
    complain_of(f"cannot finish: a fault of pfsup's own, {type(error).__name__} at {where}; please report it")
    return EXIT_INTERNAL
