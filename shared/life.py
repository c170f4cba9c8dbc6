"""The life of an envelope as a table: which status follows which, and what does it.

The rules themselves are SQL (shared/sql); this is what documentation, `status` and tests read. `python -m
pfsup.shared.life` prints the drawing in ARCHITECTURE.md.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The status of a row of async_dispatches."""

    PENDING = "pending"
    HELD = "held"
    SENT = "sent"
    RUNNING = "running"
    CONSUMED = "consumed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    DEAD = "dead"
    UNKNOWN = "unknown"


_S = Status

LIFE: dict[Status, dict[str, Status]] = {
    _S.PENDING: {
        "mark_sent": _S.SENT,
        "mark_sent, completion handover": _S.CONSUMED,
        "begin_work, faster than the mark": _S.RUNNING,
        "fail_send at the limit": _S.DEAD,
        "cancel, discard": _S.CANCELLED,
    },
    _S.HELD: {"release": _S.PENDING, "cancel, discard": _S.CANCELLED},
    _S.SENT: {
        "begin_work": _S.RUNNING,
        "redispatch, requeue_lost, resend; begin_work while paused": _S.PENDING,
        "cancel, discard": _S.CANCELLED,
    },
    _S.RUNNING: {
        "settle consumed; end_lost where its business row is over": _S.CONSUMED,
        "settle retry, snooze; redispatch of a lost run": _S.PENDING,
        "settle rejected": _S.REJECTED,
        "end_lost where its business row is gone or cancelled": _S.CANCELLED,
        "settle dead; retry at max_attempts; end_lost at max_recoveries": _S.DEAD,
        "settle unknown; retry or end_lost with an effect begun": _S.UNKNOWN,
    },
    _S.CONSUMED: {},
    _S.REJECTED: {},
    _S.CANCELLED: {},
    _S.DEAD: {"retry": _S.PENDING, "discard": _S.CANCELLED},
    _S.UNKNOWN: {
        "settle_unknown retry": _S.PENDING,
        "settle_unknown succeeded": _S.CONSUMED,
        "settle_unknown failed": _S.REJECTED,
        "discard": _S.CANCELLED,
    },
}
"""Status and cause → next status."""

LIVE = frozenset({_S.PENDING, _S.HELD, _S.SENT, _S.RUNNING, _S.DEAD, _S.UNKNOWN})
"""At most one envelope in these for each delivery key."""


def drawing() -> str:
    """LIFE as a mermaid state diagram."""
    edges = (f"    {before} --> {after}: {cause}" for before, row in LIFE.items() for cause, after in row.items())
    ends = (f"    {status} --> [*]" for status, row in LIFE.items() if not row)
    return "\n".join(("stateDiagram-v2", "    [*] --> pending: stage", *edges, *ends))


if __name__ == "__main__":
    print(drawing())  # noqa: T201 - this is the command
