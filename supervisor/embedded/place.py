"""Where one embedded server lives, and as whom."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from .account import Account
from .private import Lock


class ChildArguments(TypedDict):
    """What every process of a place is started with."""

    account: Account
    cwd: Path
    log: Path
    lock_fd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`home` holds the server's files (made if missing), `sockets` its socket, `log` its output.

    `keep` says that the files must outlive the process: writes are then made durable.
    """

    home: Path
    sockets: Path
    log: Path
    account: Account
    lock: Lock
    keep: bool

    def make_home(self) -> None:
        """Make the server's own directory, 0700, owned by its account."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self.home, self.account.uid, self.account.gid)

    def for_child(self) -> ChildArguments:
        """The arguments of Child that every process of this place shares."""
        return {"account": self.account, "cwd": self.home, "log": self.log, "lock_fd": self.lock.fd}
