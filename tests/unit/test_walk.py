"""Where a finder's pages begin: with the oldest, and every other time where the walk before left off."""

from __future__ import annotations

from pfsup.domains.walk import START, Walk


def test_walk_that_comes_to_the_end_begins_anew():
    walk = Walk()
    for _ in range(3):
        assert walk.begin() == START
        walk.end(START)


def test_every_other_walk_goes_on_where_the_one_before_it_left_off():
    walk = Walk()
    begun: list[object] = []
    for stop in ("a", "b", "c", "d", "e"):
        begun.append(walk.begin())
        walk.end((1, stop))
    assert begun == [START, (1, "a"), START, (1, "b"), START], "what is at the head moves no place behind it"


def test_walk_that_went_on_to_the_end_begins_anew_after_it():
    walk = Walk()
    for stop in ((1, "a"), START):
        walk.begin()
        walk.end(stop)
    assert walk.begin() == START
    walk.end((1, "z"))
    assert walk.begin() == (1, "z")


def test_walk_that_failed_leaves_the_place_where_it_was():
    walk = Walk()
    walk.begin()
    walk.end((1, "a"))
    walk.begin()
    assert (walk.begin(), walk.begin()) == (START, (1, "a"))
