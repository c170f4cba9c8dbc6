"""One entry of a stream, checked (DESIGN 3.3). Fields that are not known are ignored; a newer version is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...config.errors import ProtocolError
from ..text import printable

VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What begin_work() needs to know of an entry. `sink_ref` is the stream and the entry's id."""

    stream: str
    entry_id: str
    dispatch_id: int
    actor: str
    source: str | None

    @property
    def sink_ref(self) -> str:
        return f"{self.stream} {self.entry_id}"

    @property
    def place(self) -> tuple[str, str]:
        """Stream and id: which entry this is."""
        return (self.stream, self.entry_id)


def parse(stream: str, entry_id: str, fields: Mapping[object, object]) -> Message:
    """The entry as a message. Raises ProtocolError with the reason when it is not one of ours."""
    told = {text(name): text(value) for name, value in fields.items()}
    if told.get("v", VERSION) != VERSION:
        raise ProtocolError(
            f"cannot read an entry: it has version {printable(told['v'], limit=20)}, known is {VERSION}"
        )
    number, actor = told.get("dispatch_id", ""), told.get("actor", "")
    if not (number.isascii() and number.isdigit() and len(number) <= 18) or not actor:
        raise ProtocolError("cannot read an entry: it has no dispatch_id and actor")
    return Message(
        stream=stream, entry_id=entry_id, dispatch_id=int(number), actor=actor, source=told.get("source") or None
    )


def text(value: object) -> str:
    """A field as text; bytes that are no UTF-8 keep their place as escapes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
