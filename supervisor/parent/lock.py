"""One supervisor an instance: a flock that the kernel takes back when its holder dies. The pid file only informs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ...config.errors import AlreadyRunning, ConfigError


def acquire(path: Path) -> int:
    """Lock the file and return its descriptor; raises AlreadyRunning naming the holder.

    The lock is flock, not POSIX: that one vanishes when the process opens and closes the file anywhere else.
    """
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        pid = holder(path)
        who = f"pid {pid}" if pid else "another process"
        raise AlreadyRunning(f"cannot start: {who} holds {path}; see it with: pfsup status") from None
    return fd


def holder(path: Path) -> int | None:
    """The pid that holds the flock, from /proc/locks; None if nobody does or it is in another pid namespace."""
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids = (int(part[4]) for line in lines if len(part := line.split()) > 5 and part[1] == "FLOCK" and part[5] == inode)
    return next((pid for pid in pids if pid > 0), None)


def write_pid(path: Path) -> None:
    """Write our pid for people. What stood there before, whatever it was, is replaced."""
    try:
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(f"{os.getpid()}\n")
        temporary.replace(path)
    except OSError:
        pass  # information only: the lock decides


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = f"cannot use {path.parent} ({error.strerror}); set it to a directory of this user's"
        raise ConfigError((f"supervisor.runtime_dir: {why}",)) from None
