"""What a failed send says, and about whom: the broker, one stream, one row, or nothing for certain (DESIGN 4.6)."""

from __future__ import annotations

from enum import Enum

import redis.exceptions as broker

from ...config.errors import PfsupError


class Fault(Enum):
    """Whose fault a failure is, as far as its text tells."""

    BROKER = "broker"  # answered: the broker as a whole takes nothing now; nothing was written
    UNANSWERED = "unanswered"  # timeout or lost connection: it may have been written
    REFUSED = "refused"  # answered: this entry or its stream; the neighbours decide which
    ROW = "row"  # certain: this entry can never be sent as it is


class EntryTooLarge(PfsupError):
    """An entry is larger than a stream should hold."""


# Redis's own error codes (first word) that speak of the server, not of a key.
BROKER_CODES = frozenset({
    "OOM", "READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "MISCONF", "NOREPLICAS", "NOAUTH", "WRONGPASS",
})  # fmt: skip

# redis-py strips the code of errors that it has a class for. In order: some of these are kinds of later ones.
_CLASSES: tuple[tuple[type[Exception], Fault], ...] = (
    (EntryTooLarge, Fault.ROW),
    (broker.DataError, Fault.ROW),
    (broker.BusyLoadingError, Fault.BROKER),
    (broker.AuthenticationError, Fault.BROKER),
    (broker.MaxConnectionsError, Fault.BROKER),
    (broker.TimeoutError, Fault.UNANSWERED),
    (broker.ConnectionError, Fault.UNANSWERED),
    (broker.OutOfMemoryError, Fault.BROKER),
    (broker.ReadOnlyError, Fault.BROKER),
    (broker.NoPermissionError, Fault.REFUSED),
    (PfsupError, Fault.BROKER),
    (OSError, Fault.UNANSWERED),
)


def fault_of(error: BaseException) -> Fault:
    """Sort a failure into its kind; what nobody knows is REFUSED, so that its neighbours decide."""
    text = str(error)
    if "max number of clients" in text:
        return Fault.BROKER
    for kind, fault in _CLASSES:
        if isinstance(error, kind):
            return fault
    return Fault.BROKER if text.partition(" ")[0] in BROKER_CODES else Fault.REFUSED
