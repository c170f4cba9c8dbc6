"""The control socket: people, probes and applications ask here, one JSON object a line.

Only the owner of the process and root are answered. Whatever a client sends costs it at most its own connection.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.errors import EXIT_INTERNAL, EXIT_NOT_PERMITTED, EXIT_USAGE, ConfigError, ProtocolError
from ...shared.frames import MAX_REPLY_BYTES, Frames, encode
from .poller import Poller, Priority, Source

log = logging.getLogger("pfsup.parent")

MAX_CLIENTS = 16
IDLE_S = 30.0
OUT_LIMIT_BYTES = 2 * MAX_REPLY_BYTES
ACCEPTS_A_TURN = 32
TURN_BYTES = 256  # of one client in one turn, some dozen requests: sixteen that flood made a turn last 5 s at 64 KiB

Reply = dict[str, Any]
Answer = Callable[[dict[str, Any]], Reply | None]
"""Takes a request; returns its reply, or None when the client waits for the supervisor's end."""


@dataclass(slots=True, eq=False)
class Client:
    """One connection."""

    sock: socket.socket
    active: float
    source: Source | None = None
    frames: Frames = field(default_factory=Frames)
    out: bytes = b""
    waits_for_end: bool = False


@dataclass(slots=True)
class Counts:
    """What was shrugged off."""

    refused: int = 0  # another user
    bad_lines: int = 0
    evicted: int = 0  # one client too many, or idle for too long


class Control:
    """Listens on `path`. Enter it while holding the instance's lock: only the holder may replace the file."""

    def __init__(self, path: Path, poller: Poller, answer: Answer) -> None:
        self.counts = Counts()
        self._path = path
        self._poller = poller
        self._answer = answer
        self._now = 0.0
        self._clients: list[Client] = []
        self._listener: socket.socket | None = None
        self._source: Source | None = None
        self._inode = 0
        self._spare = -1

    def __repr__(self) -> str:
        return f"<Control path={self._path} clients={len(self._clients)}>"

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self._clients)

    def open(self) -> None:
        """Create the socket, or create it anew. Raises ConfigError when its path is too long or cannot be used."""
        listener, inode = _listen(self._path)
        self.close_listener(unlink=False)
        self._listener, self._inode = listener, inode
        self._source = self._poller.add(
            listener.fileno(), "control socket", Priority.CONTROL, self._accept, listener.close
        )
        if self._spare < 0:
            self._spare = self._take_spare()

    def check_path(self) -> None:
        """Create the socket anew if something took its file away."""
        if self._listener is not None and _inode(self._path) != self._inode:
            log.warning("the control socket %s was removed by someone; it is created anew", self._path)
            self.reopen()

    def reopen(self) -> None:
        """Create the socket anew. When that cannot be, the old one stays, and the supervision goes on without it."""
        try:
            self.open()
        except ConfigError as error:
            log.error("cannot create the control socket anew, signals still work: %s", "; ".join(error.problems))

    def close(self) -> None:
        """Stop listening for good."""
        self.close_listener()
        self._give_spare()

    def close_listener(self, *, unlink: bool = True) -> None:
        """Stop listening; remove the file only if it is still ours."""
        if self._listener is None or self._source is None:
            return
        self._poller.remove(self._source)
        self._listener.close()
        self._listener = None
        if unlink and _inode(self._path) == self._inode:
            self._path.unlink(missing_ok=True)

    def say_goodbye(self, reply: Reply) -> None:
        """Answer those who wait for the end, and close every connection."""
        for client in self._clients[:]:
            if client.waits_for_end:
                self._send(client, reply)
            self._drop(client)

    def next_due(self) -> float:
        """When the next idle client is to be let go (monotonic)."""
        return min((c.active + IDLE_S for c in self._clients if not c.waits_for_end), default=float("inf"))

    def tick(self, now: float) -> None:
        """Let go of clients that were idle for too long. `now` dates what follows in this turn."""
        self._now = now
        for client in self._clients[:]:
            if not client.waits_for_end and now - client.active >= IDLE_S:
                self.counts.evicted += 1
                self._drop(client)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _address = self._listener.accept() if self._listener else (None, None)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                return  # else nobody is left
            if sock is None:
                return
            self._welcome(sock)

    def _turn_away(self) -> None:
        """There is no descriptor to be had: the spare one lets the caller in, and out. Left in the queue, the caller
        would wake the loop for ever (seen: 86 % CPU).
        """
        self.counts.evicted += 1
        self._give_spare()
        try:
            if self._listener is not None:
                self._listener.accept()[0].close()
        except OSError:
            pass  # it went away by itself
        self._spare = self._take_spare()

    def _take_spare(self) -> int:
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1
        self._poller.registry.own(fd, "spare", close=functools.partial(os.close, fd))
        return fd

    def _give_spare(self) -> None:
        if self._spare >= 0:
            self._poller.registry.release(self._spare)
            os.close(self._spare)
            self._spare = -1

    def _welcome(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        client = Client(sock, self._now)
        uid = _peer_uid(sock)
        if uid not in (0, os.geteuid()):
            self.counts.refused += 1
            text = f"cannot answer uid {uid}: only uid {os.geteuid()} and root may control this supervisor"
            self._refuse(client, text)
            return
        if len(self._clients) >= MAX_CLIENTS:
            self._evict_one()
        client.source = self._poller.add(
            sock.fileno(), "control client", Priority.CONTROL, functools.partial(self._serve, client), sock.close
        )
        self._clients.append(client)

    def _evict_one(self) -> None:
        """The one that was silent the longest goes: sixteen sleepers must not lock `pfsup stop` out."""
        self.counts.evicted += 1
        self._drop(min(self._clients, key=lambda client: (client.waits_for_end, client.active)))

    def _refuse(self, client: Client, text: str) -> None:
        try:
            client.sock.send(encode({"ok": False, "code": EXIT_NOT_PERMITTED, "error": text}))
        except OSError:
            pass  # it did not wait for the answer
        client.sock.close()

    def _serve(self, client: Client) -> None:
        if client.out:
            self._flush(client)
        try:
            chunk = client.sock.recv(TURN_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        before = client.frames.bad
        requests = client.frames.feed(chunk)
        self.counts.bad_lines += client.frames.bad - before
        if requests:
            client.active = self._now
        for request in requests:
            self._reply(client, request)
        if client.frames.bad > before:
            self._send(client, {"ok": False, "code": EXIT_USAGE, "error": "cannot read the line: not a JSON object"})
        if not chunk or client.frames.overflowed:
            self._drop(client)

    def _reply(self, client: Client, request: dict[str, Any]) -> None:
        try:
            reply = self._answer(request)
        except Exception:  # a fault in one answer must not end the supervision of children
            log.exception("cannot answer a request on the control socket")
            reply = {"ok": False, "code": EXIT_INTERNAL, "error": "cannot answer: a fault of pfsup's, see its log"}
        if reply is None:
            client.waits_for_end = True
        else:
            self._send(client, reply)

    def _send(self, client: Client, reply: Reply) -> None:
        try:
            client.out += encode({"v": 1, **reply}, limit_bytes=MAX_REPLY_BYTES)
        except ProtocolError as error:
            client.out += encode({"v": 1, "ok": False, "code": error.exit_code, "error": str(error)})
        self._flush(client)
        if len(client.out) > OUT_LIMIT_BYTES:
            self._drop(client)

    def _flush(self, client: Client) -> None:
        try:
            client.out = client.out[client.sock.send(client.out) :]
        except (BlockingIOError, InterruptedError):
            pass  # the rest goes out when there is room
        except OSError:
            client.out = b""
        if client.source is not None:
            self._poller.write_too(client.source, bool(client.out))

    def _drop(self, client: Client) -> None:
        if client.source is not None:
            self._poller.remove(client.source)
        client.sock.close()
        if client in self._clients:
            self._clients.remove(client)


def _listen(path: Path) -> tuple[socket.socket, int]:
    """A listening socket at `path`, its mode 0600 from the first moment, put over whatever lay there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)  # before bind: the file is born with it, and no umask is touched
        _bind(listener, temporary)
        listener.listen(64)
        temporary.replace(path)
    except OSError as error:
        listener.close()
        raise ConfigError((f"supervisor.runtime_dir: cannot create {path}: {error.strerror or error}",)) from None
    return listener, _inode(path)


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind through the directory's descriptor: the temporary name may be longer than a socket's address holds."""
    directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _peer_uid(sock: socket.socket) -> int:
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid
