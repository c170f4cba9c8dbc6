"""Newline JSON over a stream socket: one object a line, at most 64 KiB a line (an answer to a client: 1 MiB).

JSON text holds no raw newline, so a reader finds its place again after any bad line. The standard library's json is
used on purpose: `probe` must not pay 11 ms to import a faster one for a message a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

from ..config.errors import ProtocolError

MAX_LINE_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1024 * 1024  # the status of a thousand children
MAX_DEPTH = 32

Message = dict[str, Any]


def encode(message: Mapping[str, Any], *, limit_bytes: int = MAX_LINE_BYTES) -> bytes:
    """One line for `message`, newline included. Raises ProtocolError when it is longer than the limit or not JSON."""
    try:
        line = json.dumps(message, separators=(",", ":"), default=str, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot write a message: it is not JSON ({type(error).__name__})") from None
    if len(line) > limit_bytes:
        raise ProtocolError(f"cannot write a message: {len(line)} bytes, the limit is {limit_bytes}")
    return line


def decode(line: bytes, *, depth: int = MAX_DEPTH) -> Message | None:
    """The object on one line, or None when it is anything else, or holds what not every reader of JSON can hold.

    What the parent takes from a child it shows to everyone: one NaN, lone surrogate, 65-bit number or tower of
    brackets would make every status unreadable.
    """
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("Message", value) if isinstance(value, dict) and _is_plain(cast("object", value), depth) else None


def _is_plain(value: object, depth: int) -> bool:
    match value:
        case dict():
            pairs = cast("dict[str, object]", value).items()
            return depth > 0 and all(_is_text(key) and _is_plain(part, depth - 1) for key, part in pairs)
        case list():
            return depth > 0 and all(_is_plain(part, depth - 1) for part in cast("list[object]", value))
        case str():
            return _is_text(value)
        case float():
            return isfinite(value)
        case int():
            return -(2**63) <= value < 2**63
        case _:
            return True


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Frames:
    """Puts a byte stream back into messages. Bad lines are counted and passed over; nothing it is fed makes it raise.

    `bad` counts lines that were not one JSON object. `overflowed` is set for good once a line passed the limit: its
    owner closes the connection then.
    """

    __slots__ = ("_buffer", "_limit_bytes", "bad", "overflowed")

    def __init__(self, *, limit_bytes: int = MAX_LINE_BYTES) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes
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
        if len(self._buffer) > self._limit_bytes:
            self._overflow()
        return messages

    def _read(self, line: bytearray) -> Message | None:
        if self.overflowed or not line.strip():
            return None
        if len(line) > self._limit_bytes:
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
