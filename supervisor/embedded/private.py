"""A short private directory for sockets and temporary clusters, and the lock that says whether its owner still lives.

The lock is a flock on one open file description that the owner shares with its servers: it is free only when the
owner *and* every server process are gone. So a free lock proves that nobody uses the directory.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...config.errors import AlreadyRunning, NotPermitted

PREFIX = "pfsup-srv-"
SHORT_ROOT = Path("/tmp")  # noqa: S108 - mkdtemp below makes a private 0700 directory; $TMPDIR can be too long for a socket
LOCK_NAME = "lock"
SOCKET_BYTES = 107  # sockaddr_un.sun_path is 108 bytes with its final zero (unix(7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A held lock. `fd` is given to the servers, so that it stays held while one of them lives."""

    path: Path
    fd: int

    def write_pids(self, pids: list[int]) -> None:
        """Record who holds the lock, for a successor that waits for exactly these processes to end."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, "\n".join(map(str, [os.getpid(), *pids])).encode(), 0)

    def close(self) -> None:
        """Give the lock up (it is free once the servers are gone too)."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateDir:
    """A directory of mode 0700 that only the servers' account (and root) can enter."""

    path: Path
    lock: Lock

    def give_to(self, uid: int, gid: int) -> None:
        """Make `uid` the owner: the server must be able to enter its socket directory."""
        os.chown(self.path, uid, gid)

    def remove(self) -> None:
        """Delete the directory with all that is in it, then give the lock up."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.lock.close()


def make_private_dir(root: Path | None = None) -> PrivateDir:
    """Create and lock a fresh private directory in `root` (default /tmp, where a socket's path stays short)."""
    where = root or SHORT_ROOT
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    except OSError as error:
        raise NotPermitted(f"cannot make a private directory in {where}: {error.strerror}") from error
    # Locked under another name first: a sweeper that saw an unlocked "lock" would take the directory for a dead one.
    fresh = path / f"{LOCK_NAME}.new"
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock_path = path / LOCK_NAME
    fresh.rename(lock_path)
    return PrivateDir(path=path, lock=Lock(path=lock_path, fd=fd))


def checked_socket(path: Path) -> Path:
    """Return `path` if a Unix socket can have it. Raises NotPermitted with both sizes."""
    size_bytes = len(os.fsencode(path))
    if size_bytes > SOCKET_BYTES:
        raise NotPermitted(
            f"cannot make the socket {path}: its path has {size_bytes} bytes, the system allows {SOCKET_BYTES}: "
            "use a shorter directory"
        )
    return path


def lock_persistent(directory: Path, *, wait_s: float = 30.0) -> Lock:
    """Lock a directory that is kept between runs. Waits up to `wait_s` for the servers of a killed owner to end.

    Raises AlreadyRunning when the owner itself lives, or when servers of a dead one do not end in time.
    """
    path = directory / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _lock_after_the_dead(fd, time.monotonic() + wait_s):
        owner = next(iter(_pids(fd)), "unknown")
        os.close(fd)
        raise AlreadyRunning(f"cannot use {directory}: the servers of process {owner} still use it: stop that one")
    return Lock(path=path, fd=fd)


def sweep(uids: set[int], root: Path | None = None) -> list[Path]:
    """Delete private directories that dead owners of `uids` left in `root`; return them.

    Only directories with our prefix, of one of these uids, with a lock that nobody holds.
    """
    return [path for path in _own_dirs(uids, root or SHORT_ROOT) if _remove_if_dead(path)]


def _own_dirs(uids: set[int], root: Path) -> Iterator[Path]:
    for path in root.glob(f"{PREFIX}*"):
        try:
            status = path.lstat()
        except OSError:  # another sweeper was faster
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid in uids:
            yield path


def _remove_if_dead(path: Path) -> bool:
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # not locked yet, gone already, or not ours to read
        return False
    try:
        if not _try_lock(fd) or not _is_same(fd, path / LOCK_NAME):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(fd)


def _is_same(fd: int, path: Path) -> bool:
    # Between open and flock another sweeper may have deleted this directory and an owner made a new one.
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pids(fd: int) -> list[int]:
    return [int(line) for line in os.pread(fd, 1000, 0).split() if line.isdigit()]


def _exists(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists() and not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _lock_after_the_dead(fd: int, until: float) -> bool:
    while not _try_lock(fd):
        owner, *servers = _pids(fd) or [0]
        if _exists(owner):
            return False
        if not _wait_for_one(servers, until - time.monotonic()):
            return _try_lock(fd)  # the last of them may have ended between the two looks
    return True


def _wait_for_one(pids: list[int], wait_s: float) -> bool:
    """Wait until one of the processes that still run ends. False when none runs or the time is over."""
    poller = select.poll()
    fds: list[int] = []
    try:
        for pid in filter(_exists, pids):
            try:
                fds.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue
            poller.register(fds[-1], select.POLLIN)
        return bool(fds) and bool(poller.poll(max(0.0, wait_s) * 1000))
    finally:
        for fd in fds:
            os.close(fd)
