"""Was a stream lost? One event for all of its rows, not one doubt for each (DESIGN 4.10). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...shared.sinks.redis_stream import StreamFacts

END_OF_STREAM = "18446744073709551615-18446744073709551615"


@dataclass(frozen=True, slots=True)
class Known:
    """What we know of a stream: the newest entry that we wrote, and how many it had counted when last asked."""

    newest: str = "0-0"
    entries_added: int | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries from `keep_from` to `keep_to` are there, all others are gone. None, None: none is there."""

    why: str
    keep_from: str | None = None
    keep_to: str | None = None


def find_loss(known: Known, facts: StreamFacts) -> Loss | None:
    """Compare what Redis says now with what we know; None when the stream is in order or we never wrote to it.

    Deleting entries keeps a stream, its last id and its count: only FLUSHALL, DEL, eviction, an older dump or a
    failover to a replica that lags takes them back.
    """
    if known.newest == "0-0":
        return None
    if not facts.exists:
        return Loss("the stream is gone")
    if order(facts.last_id) < order(known.newest):
        return Loss(f"the stream ends at {facts.last_id}, below entries that we wrote", "0-0", facts.last_id)
    if _counts_less(known, facts) or _begins_later(known, facts):
        return Loss("the stream was made anew", facts.first_id or facts.last_id, END_OF_STREAM)
    return None


def learn(known: Known, facts: StreamFacts) -> Known:
    """What is known after a look at a stream that is in order."""
    return Known(max(known.newest, facts.last_id, key=order), facts.entries_added)


def order(entry_id: str) -> tuple[int, int]:
    """An entry's id as it sorts: milliseconds, then the number within them."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def _counts_less(known: Known, facts: StreamFacts) -> bool:
    return known.entries_added is not None and (facts.entries_added or 0) < known.entries_added


def _begins_later(known: Known, facts: StreamFacts) -> bool:
    """Nothing was ever deleted from it, yet its first entry is younger than one that we had written before the look."""
    whole = facts.entries_added is not None and facts.length == facts.entries_added
    return whole and facts.first_id is not None and order(facts.first_id) > order(known.newest)
