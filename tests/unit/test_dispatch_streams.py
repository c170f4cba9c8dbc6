"""find_loss: a stream that was taken back is told from one whose entries were merely deleted."""

from __future__ import annotations

import pytest
from pfsup.domains.dispatch.streams import END_OF_STREAM, Known, Loss, find_loss, learn
from pfsup.shared.sinks.redis_stream import StreamFacts


def facts(**told: object) -> StreamFacts:
    known: dict[str, object] = {"exists": True, "length": 0, "last_id": "50-0", "entries_added": 100}
    return StreamFacts(stream="s", **(known | told))  # pyright: ignore[reportArgumentType] - a test's shorthand


KNOWN = Known("50-0", 100)


@pytest.mark.parametrize(
    ("known", "told", "loss"),
    [
        (Known(), facts(exists=False), None),
        (KNOWN, facts(), None),
        (KNOWN, facts(last_id="60-0", entries_added=120), None),
        (KNOWN, facts(exists=False), Loss("the stream is gone")),
        (
            KNOWN,
            facts(last_id="40-0", entries_added=90),
            Loss("the stream ends at 40-0, below entries that we wrote", "0-0", "40-0"),
        ),
        (
            KNOWN,
            facts(last_id="70-1", entries_added=2, length=2, first_id="70-0"),
            Loss("the stream was made anew", "70-0", END_OF_STREAM),
        ),
        (
            KNOWN,
            facts(last_id="70-1", entries_added=500, length=500, first_id="70-0"),
            Loss("the stream was made anew", "70-0", END_OF_STREAM),
        ),
        (Known("50-0", None), facts(entries_added=None), None),
    ],
)
def test_find_loss(known: Known, told: StreamFacts, loss: Loss | None):
    assert find_loss(known, told) == loss


def test_learn_never_forgets_an_entry_that_we_wrote_ourselves():
    assert learn(Known("90-0", 5), facts(last_id="50-0")).newest == "90-0"
    assert learn(Known("9-0", 5), facts(last_id="10-0")).newest == "10-0"
