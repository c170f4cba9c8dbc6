"""look_after and next_look_s: the rules that every business domain shares, as total functions."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.domains.decisions import (
    Decision,
    Ended,
    Limits,
    Lost,
    Run,
    Verdict,
    look_after,
    next_look_s,
)

LIMITS = Limits(stale_after_s=1800, max_recoveries=5, interval_s=10, takeover_grace_s=5)
LIVE = ("pending", "held", "sent", "running", "dead", "unknown")


def run(status: str, *, alive: bool = False, confirmed: bool = False) -> Run:
    return Run(id=1, status=status, expires_at=datetime(2026, 1, 1, tzinfo=UTC), alive=alive, confirmed=confirmed)


@pytest.mark.parametrize(("status", "queued", "silent"), [*product(LIVE, (True, False), (True, False))])
def test_every_live_envelope_has_one_who_looks_after_it(status: str, queued: bool, silent: bool):
    found = look_after(run(status), queued=queued, silent=silent, limits=LIMITS)
    match status:
        case "pending" | "held" | "sent":
            assert isinstance(found, Verdict)
            assert found.decision is Decision.MOVED_ON
        case "running":
            assert isinstance(found, Verdict)
            assert found.decision is Decision.STILL_RUNNING
        case _:
            assert isinstance(found, Verdict if queued else Ended)


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("queued", [True, False])
def test_live_lease_outweighs_every_silence(queued: bool, silent: bool):
    found = look_after(run("running", alive=True, confirmed=True), queued=queued, silent=silent, limits=LIMITS)
    assert isinstance(found, Verdict)
    assert found.decision is Decision.STILL_RUNNING


def test_ended_lease_is_believed_at_the_second_look():
    first = look_after(run("running"), queued=False, silent=True, limits=LIMITS)
    assert isinstance(first, Verdict)
    assert first.wait_s == LIMITS.takeover_grace_s
    assert isinstance(look_after(run("running", confirmed=True), queued=False, silent=False, limits=LIMITS), Lost)


def test_only_a_row_without_an_envelope_is_judged_by_silence():
    assert isinstance(look_after(None, queued=False, silent=True, limits=LIMITS), Lost)
    assert isinstance(look_after(None, queued=True, silent=False, limits=LIMITS), Lost)
    legal = look_after(None, queued=False, silent=False, limits=LIMITS)
    assert isinstance(legal, Verdict)
    assert legal.decision is Decision.STILL_RUNNING


COUNTS = st.integers(min_value=0, max_value=10**6)


@given(st.sampled_from(Decision), st.booleans(), COUNTS, COUNTS, st.floats(min_value=0.1, max_value=1e8))
def test_next_look_is_never_negative_and_never_beyond_an_hour(
    decision: Decision, charged: bool, checks: int, recoveries: int, stale_s: float
):
    limits = Limits(stale_after_s=stale_s, max_recoveries=5, interval_s=10, takeover_grace_s=5)
    wait_s = next_look_s(
        Verdict(decision=decision, reason="", charged=charged), checks=checks, recoveries=recoveries, limits=limits
    )
    if decision is not Decision.REDISPATCH:
        assert wait_s is None
    else:
        assert wait_s is not None
        assert 0 < wait_s <= 3600
        assert not charged or wait_s <= min(300, stale_s / 2)
