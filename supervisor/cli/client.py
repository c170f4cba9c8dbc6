"""The client's side of the control socket: one request, one reply, with a deadline."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any

from ...config.errors import (
    EXIT_FAILED,
    NotPermitted,
    NotRunning,
    PfsupError,
    ProtocolError,
)
from ...shared.frames import MAX_REPLY_BYTES, Frames, encode

REPLY_S = 5.0


class Refused(PfsupError):
    """The supervisor answered no; its exit code is this error's."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def ask(path: Path, verb: str, *, within_s: float = REPLY_S, **fields: Any) -> dict[str, Any]:
    """The reply to one request. Raises NotRunning, NotPermitted, Refused, or ProtocolError when none comes in time."""
    with Connection(path, within_s=within_s) as connection:
        connection.send(verb, **fields)
        reply = connection.receive(within_s)
    if reply is None:
        raise ProtocolError(f"cannot get an answer from {path}: the supervisor closed the connection")
    return checked(reply)


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, or Refused with its text and code."""
    if reply.get("ok") is True:
        return reply
    code = reply.get("code")
    raise Refused(str(reply.get("error", "refused")), code if isinstance(code, int) else EXIT_FAILED)


class Connection:
    """One connection to a running supervisor; `pid` is who listens, as the kernel tells it."""

    def __init__(self, path: Path, *, within_s: float) -> None:
        self._path = path
        self._sock = _connect(path, within_s)
        self._frames = Frames(limit_bytes=MAX_REPLY_BYTES)
        self.pid, _uid, _gid = struct.unpack("3i", self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, verb: str, **fields: Any) -> None:
        """Send one request."""
        try:
            self._sock.sendall(encode({"v": 1, "verb": verb, **fields}))
        except OSError:
            pass  # what the supervisor said before it closed, a refusal, is still there to be read

    def receive(self, within_s: float | None) -> dict[str, Any] | None:
        """The next message, or None at the end of the connection. Raises ProtocolError when none comes in time.

        Without `within_s` it waits for as long as the supervisor holds the connection.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            self._sock.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._sock.recv(64 * 1024)
            except TimeoutError:
                raise ProtocolError(f"cannot get an answer from {self._path}: none within {within_s:g} s") from None
            except OSError:
                return None
            messages = self._frames.feed(chunk)
            if messages:
                return messages[0]
            if not chunk or self._frames.overflowed:
                return None


def wait_until_gone(pid: int, within_s: float) -> bool:
    """True once that process has ended; False after `within_s`."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def _connect(path: Path, within_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # A connect with a Python timeout does not wait for room in a full backlog, one with a kernel timeout does (seen).
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(within_s), int(within_s % 1 * 1e6)))
    try:
        sock.connect(os.fspath(path))
    except PermissionError:
        sock.close()
        raise NotPermitted(f"cannot use {path}: {_owner(path)}; run this as that user") from None
    except (OSError, ValueError) as error:
        sock.close()
        why = getattr(error, "strerror", None) or str(error)
        raise NotRunning(f"cannot reach a supervisor at {path} ({why}); start one with: pfsup start") from None
    return sock


def _owner(path: Path) -> str:
    for place in (path, *path.parents):
        try:
            status = place.stat()
        except OSError:
            continue
        return f"{place} belongs to uid {status.st_uid}, mode {status.st_mode & 0o777:04o}"
    return "its directory is closed to this user"
