"""Where the entries of sent rows are: read from Redis between finding and judging, outside any transaction.

One XINFO a stream for the bounds, then one XPENDING and one XRANGE an entry, in that order in one pipeline: what a
consumer takes meanwhile is then seen as waiting, which costs a later look and nothing else. The group's `lag` is not
used: it is null after a deleted entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions as broker

from ...shared.sinks.redis_wire import Reply, Wires
from .decide import Place

ROWS_A_PIPELINE = 250


@dataclass(frozen=True, slots=True)
class Ref:
    """A row's entry: `sink_ref` taken apart."""

    stream: str
    entry: str


@dataclass(frozen=True, slots=True)
class Found:
    """Where an entry is, and how many seconds it has lain with its consumer."""

    place: Place
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What Redis says of a stream: its newest id ever, and the last id that the group was given (None: no group)."""

    exists: bool
    newest: str = "0-0"
    delivered: str | None = None


def ref_of(sink_ref: str | None) -> Ref | None:
    """`<stream> <entry id>` taken apart; None when it is something else, or there is none."""
    stream, _, entry = (sink_ref or "").rpartition(" ")
    is_ref = stream and entry.count("-") == 1 and all(part.isdecimal() for part in entry.split("-"))
    return Ref(stream, entry) if is_ref else None


class Entries:
    """Looks up entries in one Redis."""

    def __init__(self, wires: Wires, *, group: str) -> None:
        self._wires = wires
        self._group = group
        self._silent = False

    async def find(self, wanted: Mapping[int, Ref]) -> tuple[dict[int, Found], broker.RedisError | None]:
        """Where each dispatch's entry is, and why Redis did not say it of some: one stream that it refuses (a right, a
        command) keeps back no other. Raises redis-py's ConnectionError or TimeoutError when Redis is away.
        """
        self._silent = False
        found: dict[int, Found] = {}
        bounds, refused = await self._bounds(sorted({ref.stream for ref in wanted.values()}))
        rows = [(dispatch_id, ref) for dispatch_id, ref in wanted.items() if ref.stream in bounds]
        for start in range(0, len(rows), ROWS_A_PIPELINE):
            part = rows[start : start + ROWS_A_PIPELINE]
            commands = [command for _, ref in part for command in self._questions(ref)]
            replies = await self._wires.call(*commands)
            for place, (dispatch_id, ref) in enumerate(part):
                pending, entry = replies[2 * place : 2 * place + 2]
                found[dispatch_id] = place_of(dispatch_id, ref, bounds[ref.stream], pending=pending, entry=entry)
        return found, refused

    async def remove(self, sink_ref: str | None) -> None:
        """Acknowledge and delete an entry that was sent anew. What fails here housekeeping does later: after the first
        failure nothing is removed until the next find(), else every lost run would wait for a timeout.
        """
        ref = ref_of(sink_ref)
        if self._silent or ref is None:
            return
        try:
            await self._wires.call(("XACK", ref.stream, self._group, ref.entry), ("XDEL", ref.stream, ref.entry))
        except broker.RedisError:
            self._silent = True

    def _questions(self, ref: Ref) -> list[Sequence[str | int]]:
        return [
            ("XPENDING", ref.stream, self._group, ref.entry, ref.entry, 1),
            ("XRANGE", ref.stream, ref.entry, ref.entry),
        ]

    async def _bounds(self, streams: Iterable[str]) -> tuple[dict[str, Bounds], broker.RedisError | None]:
        names = list(streams)
        commands = [(*words, name) for name in names for words in (("XINFO", "STREAM"), ("XINFO", "GROUPS"))]
        replies = await self._wires.call(*commands) if names else []
        bounds: dict[str, Bounds] = {}
        refused: broker.RedisError | None = None
        for place, name in enumerate(names):
            try:
                bounds[name] = bounds_of(replies[2 * place], replies[2 * place + 1], self._group)
            except broker.RedisError as error:
                refused = error
        return bounds, refused


def bounds_of(stream: Reply, groups: Reply, group: str) -> Bounds:
    """The replies to XINFO STREAM and XINFO GROUPS as bounds. Raises what Redis answered if it is no `no such key`."""
    for reply in (stream, groups):
        if isinstance(reply, Exception):
            if "no such key" in str(reply) or "WRONGTYPE" in str(reply):
                return Bounds(False)
            raise reply
    told = _named(stream)
    known = [row for row in map(_named, groups) if row[b"name"] == group.encode()]
    delivered = known[0][b"last-delivered-id"].decode() if known else None
    return Bounds(True, told[b"last-generated-id"].decode(), delivered)


def place_of(dispatch_id: int, ref: Ref, bounds: Bounds, *, pending: Reply, entry: Reply) -> Found:
    """Where the entry of one dispatch is, from what Redis answered. Pure and total."""
    if not bounds.exists or order(bounds.newest) < order(ref.entry):
        return Found(Place.STREAM_LOST)
    if isinstance(entry, Exception) or (isinstance(pending, Exception) and "NOGROUP" not in str(pending)):
        return Found(Place.UNCLEAR)
    if pending and not isinstance(pending, Exception):
        return Found(Place.TAKEN_UP, idle_s=int(pending[0][2]) / 1000)
    if not entry or _dispatch_of(entry[0]) != str(dispatch_id).encode():
        return Found(Place.GONE)
    if bounds.delivered is None or order(ref.entry) > order(bounds.delivered):
        return Found(Place.WAITING)
    return Found(Place.ACKNOWLEDGED)


def order(entry: str) -> tuple[int, int]:
    """An entry's id as it compares."""
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence or 0)


def _named(flat: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _dispatch_of(row: Any) -> bytes | None:
    """The dispatch_id field of one entry; None when it has none. An entry can be there without fields (deleted)."""
    return _named(row[1] or []).get(b"dispatch_id")
