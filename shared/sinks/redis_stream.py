"""The sink: envelopes become entries of Redis streams (DESIGN 3.3). At least once; `dispatch_id` is the dedupe key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import redis.exceptions as broker

from ...config.values import Redis, Settings
from .faults import EntryTooLarge
from .redis_wire import Reply, Wires, bulk, packed

# A payload of 256 KiB as jsonb can be far longer as text (1e131071 is 131,072 digits), and above proto-max-bulk-len
# Redis hangs up on the whole pipeline. Nothing sensible is longer than this.
ENTRY_LIMIT_BYTES = 1024 * 1024

_FIELDS = 10  # v, dispatch_id, source, actor, aggregate_id, tenant, delivery, headers, staged_at, claimed_at


class Envelope(NamedTuple):
    """One claimed row as it goes out. Times are epoch seconds as text; `payload` is None unless it travels inline."""

    id: int
    queue: str
    actor: str
    aggregate_id: str
    tenant: str | None
    delivery: int
    headers: str
    staged_at: str
    payload: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """What Redis says of one stream. `entries_added` is None before Redis 7."""

    stream: str
    exists: bool
    length: int = 0
    first_id: str | None = None
    last_id: str = "0-0"
    entries_added: int | None = None


def stream_name(settings: Settings, queue: str) -> str:
    """The stream of a queue: `[queues.NAME] stream`, else `pfsup:<instance>:<queue>`."""
    named = settings.queues.get(queue)
    return named.stream if named and named.stream else f"pfsup:{settings.supervisor.name}:{queue}"


class RedisStreams:
    """Writes entries, makes consumer groups, tells facts about streams."""

    __slots__ = ("_group", "_grouped", "_heads", "wires")

    def __init__(self, redis: Redis, *, client_name: str) -> None:
        self.wires = Wires(redis, client_name=client_name)
        self._group = redis.group
        self._grouped: set[str] = set()
        self._heads: dict[str, bytes] = {}

    async def ping(self) -> None:
        """Raise redis-py's error, or ConfigError, when Redis does not answer PONG within `socket_timeout`."""
        reply = (await self.wires.call(("PING",)))[0]
        if isinstance(reply, Exception):
            raise reply

    async def send(
        self, streams: Sequence[str], rows: Sequence[Envelope], *, source: str, claimed_at: str
    ) -> list[str | Exception]:
        """Write row n to stream n, all in one pipeline, in the given order. Never raises for a failure of Redis.

        Returns for each row its entry's id, or what went wrong: an answer for this row alone, or for every row without
        an answer the same exception object (then it may have been written).
        """
        new = sorted({*streams} - self._grouped)
        request = [self._make_group(stream) for stream in new]
        head, tail = _shared_fields(source, claimed_at)
        results: list[str | Exception] = []
        for stream, row in zip(streams, rows, strict=True):
            entry = self._entry(stream, row, head, tail)
            if len(entry) > ENTRY_LIMIT_BYTES:
                size = f"{len(entry)} bytes as an entry, the limit is {ENTRY_LIMIT_BYTES}"
                results.append(EntryTooLarge(f"cannot send: {size}; store the payload elsewhere and stage its id"))
                continue
            results.append("")
            request.append(entry)
        replies, lost = await self.wires.exchange(b"".join(request), len(request))
        self._note_groups(new, replies)
        return _matched(results, replies[len(new) :], lost)

    async def facts(self, streams: Iterable[str]) -> list[StreamFacts]:
        """What Redis says of these streams, in one pipeline; nothing of a stream that it does not let us see.

        Raises redis-py's error when Redis does not answer.
        """
        names = list(streams)
        replies = await self.wires.call(*[("XINFO", "STREAM", name) for name in names])
        told = [_facts(name, reply) for name, reply in zip(names, replies, strict=True)]
        return [facts for facts in told if facts is not None]

    def forget_group(self, stream: str) -> None:
        """The stream was lost: the next send makes its group again."""
        self._grouped.discard(stream)

    async def close(self) -> None:
        """Close the idle connections."""
        await self.wires.close()

    def _make_group(self, stream: str) -> bytes:
        return packed(("XGROUP", "CREATE", stream, self._group, "0", "MKSTREAM"))

    def _note_groups(self, streams: Sequence[str], replies: Sequence[Reply]) -> None:
        for stream, reply in zip(streams, replies, strict=False):
            if not isinstance(reply, Exception) or "BUSYGROUP" in str(reply):
                self._grouped.add(stream)

    def _entry(self, stream: str, row: Envelope, head: bytes, tail: bytes) -> bytes:
        start = self._heads.get(stream)
        if start is None:
            start = self._heads[stream] = b"$4\r\nXADD\r\n" + bulk(stream) + b"$1\r\n*\r\n$1\r\nv\r\n$1\r\n1\r\n"
        inline = row.payload is not None
        return b"".join((
            b"*%d\r\n" % (3 + 2 * (_FIELDS + inline)), start,
            b"$11\r\ndispatch_id\r\n", bulk(str(row.id)), head,
            b"$5\r\nactor\r\n", bulk(row.actor),
            b"$12\r\naggregate_id\r\n", bulk(row.aggregate_id),
            b"$6\r\ntenant\r\n", bulk(row.tenant or ""),
            b"$8\r\ndelivery\r\n", bulk(str(row.delivery)),
            b"$7\r\nheaders\r\n", bulk(row.headers),
            b"$9\r\nstaged_at\r\n", bulk(row.staged_at), tail,
            b"$7\r\npayload\r\n" + bulk(row.payload) if row.payload is not None else b"",
        ))  # fmt: skip


def _shared_fields(source: str, claimed_at: str) -> tuple[bytes, bytes]:
    return b"$6\r\nsource\r\n" + bulk(source), b"$10\r\nclaimed_at\r\n" + bulk(claimed_at)


def _matched(results: list[str | Exception], replies: Sequence[Reply], lost: Exception | None) -> list[str | Exception]:
    """Put the replies in the places that wait for one; what got none is answered by what ended the exchange."""
    answers = iter(replies)
    for place, result in enumerate(results):
        if result == "":
            reply = next(answers, lost)
            results[place] = reply.decode() if isinstance(reply, bytes) else _unexpected(reply)
    return results


def _unexpected(reply: Reply) -> Exception:
    if isinstance(reply, Exception):
        return reply
    return broker.ResponseError(f"XADD was answered by {type(reply).__name__}")


def _facts(stream: str, reply: Reply) -> StreamFacts | None:
    if isinstance(reply, Exception):
        # A key of another kind stands where the stream was: that stream is gone too.
        gone = any(words in str(reply) for words in ("no such key", "WRONGTYPE"))
        return StreamFacts(stream=stream, exists=False) if gone else None
    told: Mapping[bytes, Reply] = dict(zip(reply[::2], reply[1::2], strict=True))
    first = told.get(b"first-entry")
    return StreamFacts(
        stream=stream,
        exists=True,
        length=told[b"length"],
        first_id=first[0].decode() if first else None,
        last_id=told[b"last-generated-id"].decode(),
        entries_added=told.get(b"entries-added"),
    )
