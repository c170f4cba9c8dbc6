"""What becomes of a message after begin_work()'s verdict: a table, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Fate(Enum):
    """What the worker does with the message it holds."""

    RUN = "run the function, settle, then end the message"
    END = "end the message: XACK and XDEL"
    AGAIN = "keep it in hand and ask again soon"
    LEAVE = "leave it in the stream, not acknowledged, and say so once"


VERDICTS: Mapping[str, Fate] = MappingProxyType(
    {
        "go": Fate.RUN,
        "stale": Fate.END,  # pending or held: the row is sent anew, with a message of its own
        "taken": Fate.END,  # another run has it; if that one dies, recovery sends the row anew
        "ended": Fate.END,
        "paused": Fate.END,  # begin_work put the row back in line; resume sends it anew
        "busy": Fate.AGAIN,  # somebody locks the row for a moment
        "foreign": Fate.LEAVE,  # another installation's: its owner may still want it
        "not_found": Fate.END,
    }
)


def fate_of(verdict: str) -> Fate:
    """The fate for `verdict`; one that a newer schema invented is left alone."""
    return VERDICTS.get(verdict, Fate.LEAVE)
