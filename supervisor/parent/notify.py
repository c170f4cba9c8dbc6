"""systemd's notify protocol, from the parent only: one datagram a message (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

CHILDREN_NEVER_SEE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Notify:
    """Sends to $NOTIFY_SOCKET; does nothing without it. `watchdog_s` is how often WATCHDOG=1 is due, or infinity."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 2e6 if path and ours and usec.isdigit() and int(usec) else float("inf")

    def __repr__(self) -> str:
        return f"<Notify address={self._address!r} watchdog_s={self.watchdog_s}>"

    def send(self, text: str) -> None:
        """Send one message. A manager that does not listen is no fault of ours."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
            try:
                sock.sendto(text.encode(), self._address)
            except OSError:
                pass  # the manager is restarting, or the path is stale; the next state is told again
