"""What a child reports about its work, cut to what a status can carry. Both ends of a link use this one rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.errors import ProtocolError
from .frames import decode, encode

LIMIT_BYTES = 8 * 1024
DEPTH = 8


def bounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures as plain JSON, or one figure that says why they were left out. Never raises.

    Figures are for people: too many of them must neither silence a child's beats nor make the status unreadable.
    """
    try:
        plain = decode(encode(figures, limit_bytes=LIMIT_BYTES), depth=DEPTH)
    except ProtocolError as error:
        return {"left_out": str(error)}
    return plain if plain is not None else {"left_out": "cannot show the figures: they are not plain JSON"}
