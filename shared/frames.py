"""Newline JSON over a stream socket: one object a line, at most 64 KiB a line.

JSON text holds no raw newline, so a reader finds its place again after any bad line. The standard library's json is
used on purpose: `probe` must not pay 11 ms to import a faster one for a message a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from ..config.errors import ProtocolError

MAX_LINE_BYTES = 64 * 1024

Message = dict[str, Any]


def encode(message: Mapping[str, Any]) -> bytes:
    """One line for `message`, newline included. Raises ProtocolError when it is longer than 64 KiB or not JSON."""
    try:
        line = json.dumps(message, separators=(",", ":"), default=str, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot write a message: it is not JSON ({type(error).__name__})") from None
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"cannot write a message: {len(line)} bytes, the limit is {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Message | None:
    """The object on one line, or None when it is anything else."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("Message", value) if isinstance(value, dict) else None


class Frames:
    """Puts a byte stream back into messages. Bad lines are counted and passed over; nothing it is fed makes it raise.

    `bad` counts lines that were not one JSON object. `overflowed` is set for good once a line passed the limit: its
    owner closes the connection then.
    """

    __slots__ = ("_buffer", "bad", "overflowed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.bad = 0
        self.overflowed = False

    def __repr__(self) -> str:
        return f"<Frames pending={len(self._buffer)} bad={self.bad} overflowed={self.overflowed}>"

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that `chunk` completes, oldest first."""
        if self.overflowed:
            return []
        self._buffer += chunk
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        messages = [message for line in lines if (message := self._read(line)) is not None]
        if len(self._buffer) > MAX_LINE_BYTES:
            self._overflow()
        return messages

    def _read(self, line: bytearray) -> Message | None:
        if self.overflowed or not line.strip():
            return None
        if len(line) > MAX_LINE_BYTES:
            self._overflow()
            return None
        message = decode(bytes(line))
        if message is None:
            self.bad += 1
        return message

    def _overflow(self) -> None:
        self.overflowed = True
        self.bad += 1
        self._buffer.clear()
