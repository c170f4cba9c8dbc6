"""The envelope domain's decision: total over everything an envelope can show, and never a second unproved call."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.domains.decisions import Decision, Limits
from pfsup.domains.envelope.decide import Evidence, Place, decide
from pfsup.shared.life import Status

LIMITS = Limits(stale_after_s=1800, max_recoveries=5, interval_s=5, takeover_grace_s=5)
EVERYTHING = st.builds(
    Evidence,
    id=st.integers(1, 2**63 - 1),
    status=st.sampled_from([*(status.value for status in Status), "gone"]),
    moved=st.booleans(),
    place=st.sampled_from([*Place, None]),
    idle_s=st.floats(0, 1e9),
    grace_s=st.floats(1, 1e9),
    alive=st.booleans(),
    confirmed=st.booleans(),
    effect=st.sampled_from(["none", "begun", "done"]),
    on_lost=st.sampled_from(["unknown", "redispatch"]),
    recoveries=st.integers(0, 10**6),
    sent_again=st.integers(0, 10**6),
)


@given(EVERYTHING)
def test_every_envelope_gets_a_decision_with_its_reason(seen: Evidence):
    verdict = decide(seen, LIMITS)
    assert verdict.reason
    assert verdict.wait_s is None or 0 < verdict.wait_s <= max(3600, seen.grace_s)


@given(EVERYTHING)
def test_begun_effect_of_a_run_is_never_begun_again_by_machine(seen: Evidence):
    verdict = decide(seen, LIMITS)
    if seen.status == "running" and seen.effect == "begun" and seen.on_lost == "unknown":
        assert verdict.decision is not Decision.REDISPATCH


@given(EVERYTHING)
def test_nothing_is_taken_from_a_live_lease_or_on_one_look(seen: Evidence):
    if seen.status == "running" and (seen.alive or not seen.confirmed):
        assert decide(seen, LIMITS).decision in (Decision.STILL_RUNNING, Decision.MOVED_ON)


@given(EVERYTHING)
def test_message_is_sent_anew_only_when_nobody_will_begin_it(seen: Evidence):
    verdict = decide(seen, LIMITS)
    if seen.status == "sent" and verdict.decision is Decision.REDISPATCH:
        assert seen.place in (Place.TAKEN_UP, Place.ACKNOWLEDGED, Place.GONE)
        assert seen.place is not Place.TAKEN_UP or seen.idle_s >= seen.grace_s


def of(status: str = "sent", **more: object) -> Decision:
    """What is decided on an envelope that was found so."""
    known: dict[str, object] = {"id": 1, "status": status, "moved": False} | more
    return decide(Evidence(**known), LIMITS).decision  # pyright: ignore[reportArgumentType] - names of fields


@pytest.mark.parametrize(
    ("place", "idle_s", "decision"),
    [
        (Place.WAITING, 0, Decision.STILL_RUNNING),
        (Place.TAKEN_UP, 59, Decision.STILL_RUNNING),
        (Place.TAKEN_UP, 60, Decision.REDISPATCH),
        (Place.ACKNOWLEDGED, 0, Decision.REDISPATCH),
        (Place.GONE, 0, Decision.REDISPATCH),
        (Place.STREAM_LOST, 0, Decision.STILL_RUNNING),
        (Place.UNCLEAR, 0, Decision.STILL_RUNNING),
        (None, 0, Decision.STILL_RUNNING),
    ],
)
def test_sent_row_is_judged_by_where_its_entry_is(place: Place | None, idle_s: float, decision: Decision):
    assert of(place=place, idle_s=idle_s) is decision


@pytest.mark.parametrize(("effect", "on_lost"), [*product(("none", "begun", "done"), ("unknown", "redispatch"))])
def test_lost_run_is_judged_by_its_effect(effect: str, on_lost: str):
    wanted = Decision.OUTCOME_UNKNOWN if (effect, on_lost) == ("begun", "unknown") else Decision.REDISPATCH
    assert of("running", confirmed=True, effect=effect, on_lost=on_lost) is wanted


def test_lost_run_over_its_recoveries_is_given_up_and_an_unproved_one_is_unknown_first():
    assert of("running", confirmed=True, recoveries=5) is Decision.GIVE_UP
    assert of("running", confirmed=True, recoveries=5, effect="begun") is Decision.OUTCOME_UNKNOWN


def test_row_that_is_no_longer_what_was_found_has_moved_on():
    assert of("sent", moved=True, place=Place.GONE) is Decision.MOVED_ON
    assert of("consumed") is Decision.MOVED_ON
