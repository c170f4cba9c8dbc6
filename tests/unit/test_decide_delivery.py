"""Delivery's decision: total over everything a job can show, never unknown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pfsup.domains.decisions import Decision, Limits, Run
from pfsup.domains.delivery.decide import OPEN, Evidence, decide

LIMITS = Limits(stale_after_s=1800, max_recoveries=5, interval_s=10, takeover_grace_s=5)
RUNS = st.none() | st.builds(
    Run,
    id=st.integers(1, 2**63 - 1),
    status=st.sampled_from(["pending", "held", "sent", "running", "dead", "unknown"]),
    token=st.uuids(),
    expires_at=st.datetimes(),
    alive=st.booleans(),
    effect=st.sampled_from(["none", "begun", "done"]),
    on_lost=st.sampled_from(["unknown", "redispatch"]),
    last_error=st.none() | st.text(max_size=20),
    confirmed=st.booleans(),
)
EVERYTHING = st.builds(
    Evidence,
    id=st.text(min_size=1, max_size=20),
    status=st.sampled_from(["queued", "running", "succeeded", "failed", "cancelled", "something new"]),
    is_retryable=st.booleans(),
    silent=st.booleans(),
    checks=st.integers(0, 10**6),
    recoveries=st.integers(0, 10**6),
    run=RUNS,
)


@given(EVERYTHING)
def test_every_job_gets_a_decision_and_none_is_unknown(seen: Evidence):
    verdict = decide(seen, LIMITS)
    assert verdict.reason
    assert verdict.decision is not Decision.OUTCOME_UNKNOWN
    assert "unknown" not in verdict.after


@given(EVERYTHING)
def test_only_open_retryable_jobs_are_changed(seen: Evidence):
    verdict = decide(seen, LIMITS)
    if seen.status not in OPEN or not seen.is_retryable:
        assert (verdict.decision, verdict.changes) == (Decision.MOVED_ON, ())


@given(EVERYTHING)
def test_begun_effect_never_gives_redispatch(seen: Evidence):
    if seen.run is not None and seen.run.status == "running" and seen.run.uncertain:
        assert decide(seen, LIMITS).decision is not Decision.REDISPATCH


@given(EVERYTHING)
def test_live_lease_and_first_look_change_nothing(seen: Evidence):
    if seen.run is not None and seen.run.status == "running" and (seen.run.alive or not seen.run.confirmed):
        assert decide(seen, LIMITS).changes == ()


def job(**more: object) -> Decision:
    """What is decided on a running, silent job without an envelope, or one that differs in `more`."""
    known: dict[str, object] = {"id": "7", "status": "running", "is_retryable": True, "silent": True}
    known |= {"checks": 1, "recoveries": 0} | more
    return decide(Evidence(**known), LIMITS).decision  # pyright: ignore[reportArgumentType] - names of fields


def test_each_decision_is_reached():
    """All but unknown: rendering asks nobody outside."""
    assert job() is Decision.REDISPATCH
    assert job(status="queued") is Decision.REDISPATCH
    assert job(silent=False) is Decision.STILL_RUNNING
    assert job(recoveries=5) is Decision.GIVE_UP
    assert job(run=Run(id=1, status="dead")) is Decision.GIVE_UP
    assert job(run=Run(id=1, status="sent")) is Decision.MOVED_ON
    assert job(status="succeeded") is Decision.MOVED_ON
