"""Entries that nobody needs any more leave their stream: XACK alone keeps them (100,000 acknowledged ones, 68.8 MB).

Needed is what some group has not been given yet, or has been given and not acknowledged. A worker of ours deletes its
entries itself; this is for foreign consumers that only acknowledge, and for what a dead consumer left pending though
its dispatch has ended. Nothing here needs the table to know what is safe: an entry that every group was given and has
acknowledged is read by nobody again. A stream without a group is left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.exceptions as broker

from ...shared.sinks.redis_wire import Reply, Wires

CHUNK = 1000
CHUNKS_A_PASS = 20
PENDING_LIMIT = 20_000
PENDING_IDLE_MS = 60_000


class StreamCleaner:
    """Cleans one stream after another, a bounded piece a pass."""

    def __init__(self, wires: Wires, *, group: str, ended_of: Callable[[list[int]], Awaitable[set[int]]]) -> None:
        self._wires = wires
        self._group = group
        self._ended_of = ended_of

    async def clean(self, stream: str) -> int:
        """Remove what is not needed from the stream; returns how many entries went. Raises redis-py's errors."""
        groups = await self._groups(stream)
        if not groups:
            return 0
        removed = await self._drop_ended(stream)
        needed, given = await self._bounds(stream, groups)
        removed += await self._call("XTRIM", stream, "MINID", needed)
        return removed + await self._drop_acknowledged(stream, groups, needed, given)

    async def _groups(self, stream: str) -> dict[str, str]:
        """Each group's name and the last entry that it was given."""
        try:
            rows = await self._call("XINFO", "GROUPS", stream)
        except broker.ResponseError:
            return {}  # no such stream, or another kind of key
        told = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return {group[b"name"].decode(): group[b"last-delivered-id"].decode() for group in told}

    async def _bounds(self, stream: str, groups: dict[str, str]) -> tuple[str, str]:
        """The oldest entry that is still needed, and the newest that every group has been given."""
        given = min(groups.values(), key=_order)
        needed = after(given)
        for group in groups:
            summary = await self._call("XPENDING", stream, group)
            if summary[0]:
                needed = min(needed, summary[1].decode(), key=_order)
        return needed, given

    async def _drop_ended(self, stream: str) -> int:
        """What a consumer took and never acknowledged, though its dispatch has ended, is acknowledged for it."""
        waiting = await self._call("XPENDING", stream, self._group, "IDLE", PENDING_IDLE_MS, "-", "+", 100)
        ids = [row[0] for row in waiting]
        if not ids:
            return 0
        entries = await self._wires.call(*[("XRANGE", stream, entry, entry) for entry in ids])
        held = {entry: _dispatch_id(reply) for entry, reply in zip(ids, entries, strict=True)}
        ended = await self._ended_of([n for n in held.values() if n is not None])
        gone = [entry for entry, dispatch_id in held.items() if dispatch_id is None or dispatch_id in ended]
        if gone:
            await self._call("XACK", stream, self._group, *gone)
            return int(await self._call("XDEL", stream, *gone))
        return 0

    async def _drop_acknowledged(self, stream: str, groups: dict[str, str], needed: str, given: str) -> int:
        """Behind an entry that is still worked on, what came after it and is acknowledged goes too."""
        removed, start = 0, needed
        for _ in range(CHUNKS_A_PASS):
            if _order(start) > _order(given):
                break
            entries = [row[0] for row in await self._call("XRANGE", stream, start, given, "COUNT", CHUNK)]
            if not entries:
                break
            pending = await self._pending(stream, groups, entries[0], entries[-1])
            done = [entry for entry in entries if entry not in pending] if pending is not None else []
            if done:
                removed += await self._call("XDEL", stream, *done)
            start = after(entries[-1].decode())
        return removed

    async def _pending(self, stream: str, groups: dict[str, str], first: bytes, last: bytes) -> set[bytes] | None:
        """The entries between two that some group was given and has not acknowledged; None when they are too many to
        be told at once (a group's list also holds entries that were deleted).
        """
        asked = [("XPENDING", stream, group, first, last, PENDING_LIMIT) for group in groups]
        lists = [_or_raise(reply) for reply in await self._wires.call(*asked)]
        if any(len(rows) >= PENDING_LIMIT for rows in lists):
            return None
        return {row[0] for rows in lists for row in rows}

    async def _call(self, *command: Any) -> Any:
        return _or_raise((await self._wires.call(command))[0])


def after(entry_id: str) -> str:
    """The id that follows `entry_id`."""
    ms, number = _order(entry_id)
    return f"{ms}-{number + 1}"


def _order(entry_id: str) -> tuple[int, int]:
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def _or_raise(reply: Reply) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _dispatch_id(reply: Reply) -> int | None:
    """The dispatch that an XRANGE of one entry shows; None when the entry is gone or is not ours."""
    entries: Sequence[Any] = _or_raise(reply)
    fields = entries[0][1] if entries else None
    if not fields:
        return None
    found = dict(zip(fields[::2], fields[1::2], strict=True)).get(b"dispatch_id", b"")
    return int(found) if found.isdigit() else None
