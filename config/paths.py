"""Where an instance keeps its files. Standard library only: the parent, `probe` and `status` import this.

Every name carries the instance's name, so that several instances share a directory. Nothing is made here: the parent
makes the directories, mode 0700.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .errors import ConfigError, Problem

if TYPE_CHECKING:
    from .values import Supervisor

# sun_path holds 108 bytes with its closing zero on Linux, 104 on macOS (unix(7)).
SOCKET_LIMIT_BYTES = 107 if sys.platform == "linux" else 103


class Place(NamedTuple):
    """The three keys of [supervisor] that say where an instance's files are, without the rest of the settings."""

    name: str = "pfsup"
    runtime_dir: str = ""
    state_dir: str = ""


def runtime_dir(supervisor: Supervisor | Place) -> Path:
    """Where socket, lock and pid file live: as configured, else $XDG_RUNTIME_DIR/pfsup, /run/pfsup (root), state."""
    if supervisor.runtime_dir:
        return Path(supervisor.runtime_dir)
    xdg = os.environ.get("XDG_RUNTIME_DIR", "")
    if xdg.startswith("/"):  # a relative one is to be ignored, says the XDG base directory specification
        return Path(xdg, "pfsup")
    return Path("/run/pfsup") if os.geteuid() == 0 else state_dir(supervisor)


def state_dir(supervisor: Supervisor | Place) -> Path:
    """Where what survives a restart lives: as configured, else /var/lib/pfsup (root), else ~/.local/state/pfsup."""
    if supervisor.state_dir:
        return Path(supervisor.state_dir)
    if os.geteuid() == 0:
        return Path("/var/lib/pfsup")
    xdg = os.environ.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg, "pfsup")
    try:
        return Path("~/.local/state/pfsup").expanduser()
    except RuntimeError:
        raise ConfigError([_no_home()]) from None


def _no_home() -> Problem:
    return Problem(path="supervisor.state_dir", wanted="a directory", got="a user without a home", hint="set state_dir")


def control_socket(supervisor: Supervisor | Place) -> Path:
    """The control socket's path. Raises ConfigError when a Unix socket's address cannot hold it."""
    path = runtime_dir(supervisor) / f"{supervisor.name}.sock"
    size_bytes = len(os.fsencode(path))
    if size_bytes > SOCKET_LIMIT_BYTES:
        raise ConfigError([_too_long(path, size_bytes)])
    return path


def _too_long(path: Path, size_bytes: int) -> Problem:
    return Problem(
        path="supervisor.runtime_dir",
        wanted=f"a socket path of at most {SOCKET_LIMIT_BYTES} bytes",
        got=f"{path} ({size_bytes} bytes)",
        hint="set [supervisor] runtime_dir to a shorter directory",
    )


def lock_file(supervisor: Supervisor | Place) -> Path:
    """The file whose flock says that the instance runs."""
    return runtime_dir(supervisor) / f"{supervisor.name}.lock"


def pid_file(supervisor: Supervisor | Place) -> Path:
    """The file with the parent's pid, for people and init scripts; nothing of ours trusts it."""
    return runtime_dir(supervisor) / f"{supervisor.name}.pid"
