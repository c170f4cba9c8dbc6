"""Finding and reading the configuration file, with nothing but the standard library.

`pfsup probe`, `status` and `stop` need three keys to find the control socket; they read them here, without the checks
of `load` and the 130 ms that those cost to import (this: 24 ms, the interpreter's own imports included).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from .errors import ConfigError, Problem
from .paths import Place

SIZE_LIMIT_BYTES = 1 << 20
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def find_file(path: str | None, environ: Mapping[str, str]) -> Path | None:
    """The configuration file: `path`, else $PFSUP_CONFIG, else ./pfsup.toml, else /etc/pfsup/pfsup.toml.

    What is named must be there. None when nothing is named and neither default exists.
    """
    named = path or environ.get("PFSUP_CONFIG")
    if named:
        return Path(named)
    return next((p for p in (Path("pfsup.toml"), Path("/etc/pfsup/pfsup.toml")) if os.path.lexists(p)), None)


def read_text(path: Path) -> str:
    """The file's text, at most 1 MiB. Raises ConfigError that says why it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError([_unreadable(path, error.strerror or type(error).__name__)]) from None
    if len(raw) > SIZE_LIMIT_BYTES:
        raise ConfigError([_unreadable(path, "it is larger than 1 MiB, which no configuration is")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([_unreadable(path, f"byte {error.start} is not UTF-8; save the file as UTF-8")]) from None


def _unreadable(path: Path, why: str) -> Problem:
    return Problem(where=str(path), path=f"cannot read the file: {why}", hint="name another with -c or $PFSUP_CONFIG")


def parse(text: str, path: Path) -> dict[str, Any]:
    """The document in `text`. Raises ConfigError with line and column where it is not TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([_not_toml(str(error) or "nested too deeply", text, path)]) from None


def _not_toml(message: str, text: str, path: Path) -> Problem:
    match = _POSITION.search(message)
    told = message[: match.start()] if match else message
    lines = text.split("\n")
    line, column = (match[1], match[2]) if match and match[1] else (len(lines), len(lines[-1]) + 1)
    return Problem(
        where=f"{path}:{line}:{column}", path=f"cannot read TOML: {told}", hint='texts need quotes: key = "text"'
    )


def absolute(value: str, base: Path | None = None) -> str:
    """A path as every process can use it: `~` opened, a relative one seen from `base`, else from here. "" stays ""."""
    if not value:
        return value
    try:
        path = Path(value).expanduser()
    except RuntimeError:  # no such user, or no home: left as written, and refused where it is opened
        path = Path(value)
    return str(path if path.is_absolute() else (base or Path.cwd()) / path)


def supervisor(path: str | None = None, *, environ: Mapping[str, str] | None = None) -> Place:
    """Name and directories of the configured instance, unchecked beyond being text: enough to find its socket.

    Raises ConfigError when the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    file = find_file(path, environ)
    document = parse(read_text(file), file) if file else {}
    section = document.get("supervisor")
    written = cast("dict[str, Any]", section) if isinstance(section, dict) else {}
    base = file.absolute().parent if file else None
    name = environ.get("PFSUP_SUPERVISOR__NAME", written.get("name", "pfsup"))
    return Place(
        name=name if isinstance(name, str) else "pfsup",
        runtime_dir=_directory("runtime_dir", written, environ, base),
        state_dir=_directory("state_dir", written, environ, base),
    )


def _directory(key: str, written: Mapping[str, Any], environ: Mapping[str, str], base: Path | None) -> str:
    from_environment = environ.get(f"PFSUP_SUPERVISOR__{key.upper()}")
    if from_environment is not None:
        return absolute(from_environment)
    value = written.get(key, "")
    return absolute(value, base) if isinstance(value, str) else ""
