"""A real Valkey or Redis on a Unix socket; append-only file only where the data is kept."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from ...config.errors import PfsupError
from .child import Child
from .place import Place
from .private import checked_socket
from .programs import RedisProgram

READY_WITHIN_S = 60.0


class Valkey:
    """One server. `flags` go to its command line as they are, for example ("--maxmemory", "10mb")."""

    __slots__ = ("_child", "_flags", "_place", "_program", "socket")

    def __init__(self, program: RedisProgram, place: Place, *, flags: Sequence[str] = ()) -> None:
        self._program = program
        self._place = place
        self._flags = tuple(flags)
        self._child: Child | None = None
        self.socket = checked_socket(place.sockets / "redis.sock")

    def __repr__(self) -> str:
        return f"<Valkey {self._program.origin} {self.socket} {self._child}>"

    @property
    def child(self) -> Child:
        """The server's process. Raises PfsupError when it was not started."""
        if self._child is None:
            raise PfsupError("cannot name Redis' process: it is not started")
        return self._child

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._place.log

    @property
    def url(self) -> str:
        """The address over the socket."""
        return f"unix://{self.socket}?db=0"

    def start(self) -> None:
        """Start the server and return when it answers PING. Raises ServerFailed."""
        self._place.make_home()
        self._child = Child(self._argv(), name="Redis", **self._place.for_child())
        try:
            self._child.wait_ready(self._is_ready, within_s=READY_WITHIN_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Shut down (the append-only file is written out). After 30 s SIGKILL."""
        if self._child is not None:
            self._child.stop(harder=signal.SIGKILL)
            self._child.close()
            self._child = None
            self.socket.unlink(missing_ok=True)

    def _argv(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self._place.home),
            "save": "",
            "appendonly": "yes" if self._place.keep else "no",
            "daemonize": "no",
        }
        flags = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(self._program.path), *flags, *self._flags]

    def _is_ready(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as conn:
                conn.settimeout(1.0)
                conn.connect(str(self.socket))
                conn.sendall(b"PING\r\n")
                # -LOADING means not yet; -NOAUTH is an answer too: it serves, and wants a password.
                return conn.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
