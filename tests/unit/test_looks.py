"""Looks: a lost run is believed at the second look, the grace later, over a connection that was never broken."""

from __future__ import annotations

from pfsup.domains.looks import Looks
from support.recovery import Clock


def looks() -> tuple[Looks, Clock]:
    clock = Clock()
    return Looks(5.0, monotonic=clock), clock


def test_first_look_is_never_enough():
    seen, clock = looks()
    assert not seen.twice(1, "token")
    assert not seen.twice(1, "token")
    clock.pass_(4.9)
    assert not seen.twice(1, "token")


def test_second_look_after_the_grace_is_believed_and_stays_so():
    seen, clock = looks()
    seen.twice(1, "token")
    clock.pass_(5.0)
    assert seen.twice(1, "token")
    assert seen.twice(1, "token"), "a lock or an error in between costs no new grace"


def test_other_facts_are_a_first_look():
    seen, clock = looks()
    seen.twice(1, ("token", "10:00"))
    clock.pass_(60)
    assert not seen.twice(1, ("token", "10:05"))


def test_broken_connection_makes_every_next_look_the_first():
    seen, clock = looks()
    seen.twice(1, "token")
    clock.pass_(60)
    seen.broken()
    assert (seen.open, seen.twice(1, "token")) == (0, False)


def test_runs_that_never_came_back_are_forgotten():
    """Memory is bounded by what was seen lately."""
    seen, clock = looks()
    for run in range(1000):
        seen.twice(run, "token")
    clock.pass_(100)
    seen.twice(1000, "token")
    seen.drop_older(50)
    assert seen.open == 1


def test_process_that_slept_believes_no_look_even_before_its_next_pulse():
    """After SIGCONT the loop may run the cycle first: the look at the row is answered, the pulse is only due."""
    seen, clock = looks()
    seen.awake()
    assert not seen.twice(1, "expired at 7")
    clock.pass_(60)
    assert not seen.twice(1, "expired at 7"), "the first look again"
    seen.awake()
    clock.pass_(seen.grace_s)
    seen.awake()
    assert not seen.twice(1, "expired at 7"), "and a gap in the pulses is one too"


def test_look_is_believed_while_the_pulses_come():
    seen, clock = looks()
    seen.awake()
    assert not seen.twice(1, "expired at 7")
    for _ in range(4):
        clock.pass_(seen.pulse_s)
        seen.awake()
    assert seen.twice(1, "expired at 7")
