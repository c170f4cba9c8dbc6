"""The parent's end of one child's socket. Reads what is there, writes what fits, never waits."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from ...shared.frames import Frames, Message, encode

TURN_BYTES = 16 * 1024  # of one child in one turn, so that a flood starves nobody: 30 ms of the worst garbage


class Outbox:
    """Messages that wait to be written, one a kind: the newest replaces what was not sent yet."""

    __slots__ = ("_begun", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._begun = b""

    def __repr__(self) -> str:
        return f"<Outbox waiting={list(self._waiting)} begun={len(self._begun)}>"

    @property
    def is_empty(self) -> bool:
        """True if all is written."""
        return not self._begun and not self._waiting

    def put(self, kind: str, message: Mapping[str, Any]) -> bool:
        """Queue a message. Returns False if it replaced one of its kind."""
        fresh = kind not in self._waiting
        self._waiting[kind] = encode(message)
        return fresh

    def flush(self, sock: socket.socket) -> None:
        """Write what the socket takes now. A peer that is gone takes everything, and it is lost."""
        try:
            while not self.is_empty:
                if not self._begun:
                    self._begun = self._waiting.pop(next(iter(self._waiting)))
                self._begun = self._begun[sock.send(self._begun) :]
        except (BlockingIOError, InterruptedError):
            pass  # the rest goes out when the socket is writable again
        except OSError:
            self._begun = b""
            self._waiting.clear()


class Wire:
    """One child's socket: `read` and `flush` never block; `bad` counts lines that were no message."""

    __slots__ = ("_frames", "ended", "outbox", "sock")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.outbox = Outbox()
        self.ended = False
        self._frames = Frames()

    def __repr__(self) -> str:
        return f"<Wire fd={self.sock.fileno()} ended={self.ended} {self.outbox!r}>"

    @property
    def bad(self) -> int:
        """Lines that were not a message."""
        return self._frames.bad

    def read(self) -> list[Message]:
        """The messages that are complete now. Sets `ended` at end of file or after a line over the limit."""
        messages: list[Message] = []
        left = TURN_BYTES
        while left > 0 and not self.ended:
            try:
                chunk = self.sock.recv(left)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                chunk = b""
            messages += self._frames.feed(chunk)
            self.ended = not chunk or self._frames.overflowed
            left -= len(chunk)
        return messages

    def flush(self) -> None:
        """Write what the socket takes now."""
        self.outbox.flush(self.sock)
