"""The worker's side of the streams: its group, new entries, entries it was given before, entries nobody ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from .message import text

# Stream, entry id, fields. Fields are None or empty for an entry that was deleted while it was pending.
Entry = tuple[str, str, dict[Any, Any] | None]
Place = tuple[str, str]


class Reader:
    """Reads one group's streams under one consumer name. Never returns more entries than asked for.

    First what this consumer was given before and never ended: after its own restart, and after an answer that was lost
    on the way. Then new entries. `client` must be patient: its socket timeout longer than `block_s`.
    """

    def __init__(self, client: Redis, streams: Iterable[str], *, group: str, consumer: str, block_s: float) -> None:
        self._client = client
        self._streams = list(streams)
        self._group = group
        self._consumer = consumer
        self._block_ms = max(1, round(block_s * 1000))
        self._given: dict[str, str] = {}  # streams whose own pending entries are still to be read, from which id on
        self._turn = 0
        self._sweep_from: dict[str, str] = {}
        self.look_back()

    def __repr__(self) -> str:
        return f"<Reader {self._consumer} streams={len(self._streams)} looks_back={bool(self._given)}>"

    def look_back(self) -> None:
        """Read what is pending under this consumer's name before anything new."""
        self._given = dict.fromkeys(self._streams, "0-0")

    async def make_groups(self) -> None:
        """Create streams and groups that are missing, from the stream's beginning."""
        for stream in self._streams:
            try:
                await self._client.xgroup_create(stream, self._group, id="0", mkstream=True)
            except exceptions.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def read(self, free: int) -> list[Entry]:
        """At most `free` entries; waits up to block_s for new ones. A missing group is created."""
        try:
            if self._given:
                return await self._read_given(free)
            return await self._read_new(free)
        except exceptions.ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self.make_groups()
            return []

    async def sweep(self, free: int, *, idle_s: float) -> list[Entry]:
        """Take over at most `free` entries that nobody ended for `idle_s` seconds, whoever holds them.

        That harms nobody: begin_work() lets one worker in, whoever has the message.
        """
        found: list[Entry] = []
        for stream in self._streams:
            if len(found) >= free:
                break
            answer = await self._client.xautoclaim(
                stream,
                self._group,
                self._consumer,
                min_idle_time=round(idle_s * 1000),
                start_id=self._sweep_from.get(stream, "0-0"),
                count=free - len(found),
            )
            self._sweep_from[stream] = text(answer[0])
            found += [(stream, text(entry_id), fields) for entry_id, fields in answer[1]]
        return found

    async def end(self, places: Iterable[Place]) -> None:
        """XACK and XDEL. Ending an entry twice, or one that is gone, is harmless."""
        by_stream: dict[str, list[str]] = {}
        for stream, entry_id in places:
            by_stream.setdefault(stream, []).append(entry_id)
        pipe = self._client.pipeline(transaction=False)
        for stream, ids in by_stream.items():
            pipe.xack(stream, self._group, *ids)
            pipe.xdel(stream, *ids)
        await pipe.execute()

    async def leave(self) -> None:
        """Take this consumer out of the groups where it holds nothing, so that names do not pile up."""
        for stream in self._streams:
            held = await self._client.xpending_range(
                stream, self._group, min="-", max="+", count=1, consumername=self._consumer
            )
            if not held:
                await self._client.xgroup_delconsumer(stream, self._group, self._consumer)

    async def _read_given(self, free: int) -> list[Entry]:
        stream, since = next(iter(self._given.items()))
        answer = await self._client.xreadgroup(self._group, self._consumer, {stream: since}, count=free)
        entries = _entries(answer)
        if entries:
            self._given[stream] = entries[-1][1]
        else:
            del self._given[stream]
        return entries

    async def _read_new(self, free: int) -> list[Entry]:
        """COUNT holds for each stream, so the free places are shared out before the read."""
        asked = min(free, len(self._streams))
        chosen = [self._streams[(self._turn + n) % len(self._streams)] for n in range(asked)]
        self._turn = (self._turn + asked) % len(self._streams)
        # With fewer places than streams the others must not wait for the whole block.
        block_ms = self._block_ms if asked == len(self._streams) else min(self._block_ms, 50)
        answer = await self._client.xreadgroup(
            self._group, self._consumer, dict.fromkeys(chosen, ">"), count=free // asked, block=block_ms
        )
        return _entries(answer)


def _entries(answer: Any) -> list[Entry]:
    return [(text(stream), text(entry_id), fields) for stream, rows in answer or () for entry_id, fields in rows]
