"""What the answers to one batch mean for each row, for its stream and for the broker. Pure (DESIGN 4.6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import redis.exceptions as broker

from ...shared.sinks.faults import Fault, fault_of
from ...shared.sinks.redis_stream import Envelope


@dataclass(slots=True, kw_only=True)
class Verdict:
    """`sent`: row and entry id. `refused`: to be charged. `returned`: claims that go back uncharged."""

    sent: list[tuple[Envelope, str]] = field(default_factory=list[tuple[Envelope, str]])
    refused: list[tuple[Envelope, Exception]] = field(default_factory=list[tuple[Envelope, Exception]])
    returned: list[Envelope] = field(default_factory=list[Envelope])
    broker: Exception | None = None
    streams: dict[str, Exception] = field(default_factory=dict[str, Exception])
    hung_up_on: int | None = None  # the one row of a pipeline that lost its connection


def judge(rows: Sequence[Envelope], results: Sequence[str | Exception], *, suspect: int | None = None) -> Verdict:
    """Decide for each row of a batch. `suspect` is the row that was alone when the connection was lost before, with a
    broker that answered since: if it happens to that row alone again, the row is to blame.

    An entry that Redis refuses is charged to its row only where another entry of the same stream got through: the
    backlog of a broken stream is never burnt.
    """
    verdict = Verdict()
    through = {row.queue for row, result in zip(rows, results, strict=True) if isinstance(result, str)}
    if len(rows) == 1:
        verdict.hung_up_on = next(_hung_up(rows, results), None)
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, str):
            verdict.sent.append((row, result))
        elif row.id == suspect == verdict.hung_up_on:
            verdict.refused.append((row, result))
        else:
            _judge_failure(verdict, row, result, through)
    return verdict


def _judge_failure(verdict: Verdict, row: Envelope, error: Exception, through: set[str]) -> None:
    match fault_of(error):
        case Fault.ROW:
            verdict.refused.append((row, error))
        case Fault.REFUSED if row.queue in through:
            verdict.refused.append((row, error))
        case Fault.REFUSED:
            verdict.returned.append(row)
            verdict.streams.setdefault(row.queue, error)
        case Fault.BROKER | Fault.UNANSWERED:
            verdict.returned.append(row)
            verdict.broker = verdict.broker or error
        case unreachable:  # pyright: ignore[reportUnnecessaryComparison] - total now; a new Fault must not fall through
            assert_never(unreachable)


def _hung_up(rows: Sequence[Envelope], results: Sequence[str | Exception]) -> Iterator[int]:
    """A timeout does not count: a frozen broker is no fault of the row."""
    for row, result in zip(rows, results, strict=True):
        if isinstance(result, broker.TimeoutError) or not isinstance(result, Exception):
            continue
        if fault_of(result) is Fault.UNANSWERED:
            yield row.id
