"""Breaker: open at once, tried again at most half a second later, closed by the first good answers."""

from __future__ import annotations

import random

from pfsup.domains.dispatch.breaker import TRIAL_SIZES, Breaker, Breakers, State
from pfsup.shared.backoff import Backoff


def backoff() -> Backoff:
    return Backoff(0.1, 0.5, rng=random.Random(7))


def test_breaker_opens_at_the_first_failure_and_says_why():
    breaker = Breaker(backoff())
    assert breaker.failed(10.0, "out of memory") is True
    assert (breaker.state, breaker.reason) == (State.OPEN, "out of memory")
    assert 10.08 <= breaker.retry_at <= 10.12


def test_breaker_ignores_failures_of_what_began_before_it_opened():
    breaker = Breaker(backoff())
    breaker.failed(10.0, "first")
    retry_at = breaker.retry_at
    assert breaker.failed(10.05, "late") is False
    assert (breaker.retry_at, breaker.reason) == (retry_at, "first")


def test_breaker_never_waits_longer_than_half_a_second_for_the_next_trial():
    breaker = Breaker(backoff())
    for _ in range(200):
        breaker.failed(0.0, "down")
        assert breaker.retry_at <= 0.5
        breaker.begin_trial()


def test_breaker_closes_after_trials_of_one_two_and_four_rows():
    breaker = Breaker(backoff())
    breaker.failed(0.0, "down")
    breaker.begin_trial()
    sizes: list[int] = []
    while breaker.state is State.TRIAL:
        sizes.append(breaker.trial_size)
        breaker.passed()
    assert tuple(sizes) == TRIAL_SIZES
    assert (breaker.state, breaker.reason) == (State.CLOSED, "")


def test_breaker_opens_again_when_a_trial_fails():
    breaker = Breaker(backoff())
    breaker.failed(0.0, "down")
    breaker.begin_trial()
    breaker.passed()
    assert breaker.failed(1.0, "down again") is False
    assert (breaker.state, breaker.retry_at > 1.0) == (State.OPEN, True)


def test_breaker_of_a_stream_tries_its_first_row_with_a_neighbour_every_second_time():
    breaker = Breaker(backoff(), with_neighbour=True)
    sizes: list[int] = []
    for now in range(4):
        breaker.failed(float(now), "refused")
        breaker.begin_trial()
        sizes.append(breaker.trial_size)
    assert sizes == [1, 2, 1, 2]


def test_breakers_of_streams_are_forgotten_once_they_are_closed():
    breakers = Breakers(backoff)
    assert breakers.stream_failed("mail", 0.0, "WRONGTYPE") is True
    assert breakers.closed_queues == ("mail",)
    assert breakers.due(0.01) == []
    assert breakers.due(0.2) == ["mail"]
    breakers.streams["mail"].begin_trial()
    assert [breakers.stream_passed("mail") for _ in TRIAL_SIZES] == [False, False, True]
    assert (breakers.closed_queues, breakers.retry_in_s(9.0)) == ((), None)
