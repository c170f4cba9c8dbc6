"""One tree of errors. Each carries the exit code that the command line ends with (see README, "Exit codes")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DEGRADED = 3
EXIT_FORCED = 4
EXIT_UNAVAILABLE = 69
EXIT_INTERNAL = 70
EXIT_TRY_LATER = 75
EXIT_NOT_PERMITTED = 77
EXIT_CONFIG = 78


class PfsupError(Exception):
    """Something pfsup could not do. The text says what, why, and what to do next."""

    exit_code = EXIT_FAILED


class Problem(NamedTuple):  # no dataclass: a probe imports this file, and pays 10 ms of CPU for those
    """One fault of the configuration: where it stands, the key, what was wanted, what was found, what to do.

    `got` never holds a secret or the value of a key that is not known.
    """

    where: str = ""  # "pfsup.toml:12", the environment variable's name, "flag"
    path: str = ""
    wanted: str = ""
    got: str = ""
    hint: str = ""

    def __str__(self) -> str:
        found = ", ".join(
            part for part in (self.wanted and f"wanted {self.wanted}", self.got and f"got {self.got}") if part
        )
        told = ": ".join(part for part in (self.where, self.path, found) if part)
        return told + (f"; {self.hint}" if self.hint else "")


class ConfigError(PfsupError):
    """The configuration cannot be used. Holds every problem found, not only the first."""

    exit_code = EXIT_CONFIG

    def __init__(self, problems: Sequence[str | Problem]) -> None:
        self.problems = tuple(str(problem) for problem in problems)
        self.details = tuple(p if isinstance(p, Problem) else Problem(path=p) for p in problems)
        super().__init__("cannot use the configuration:\n" + "\n".join(f"  {p}" for p in self.problems))


class SchemaError(PfsupError):
    """The database's schema is missing, older or newer than this version speaks."""

    exit_code = EXIT_TRY_LATER


class SinkUnavailable(PfsupError):
    """The broker as a whole cannot take entries now; nothing is charged to a row."""

    exit_code = EXIT_TRY_LATER


class DatabaseUnavailable(PfsupError):
    """The database cannot be reached or refuses us now."""

    exit_code = EXIT_TRY_LATER


class AlreadyRunning(PfsupError):
    """Another supervisor holds this instance's lock."""

    exit_code = EXIT_TRY_LATER


class NotRunning(PfsupError):
    """No supervisor answers on this instance's control socket."""

    exit_code = EXIT_UNAVAILABLE


class MissingProgram(PfsupError):
    """A program that is needed is not on this machine."""

    exit_code = EXIT_UNAVAILABLE


class NotPermitted(PfsupError):
    """The operating system or the database refuses this to the caller."""

    exit_code = EXIT_NOT_PERMITTED


class ProtocolError(PfsupError):
    """The peer on a socket said something that is not the protocol."""

    exit_code = EXIT_INTERNAL
