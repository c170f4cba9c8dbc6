"""The child table: which fact leads where."""

from __future__ import annotations

import pytest
from pfsup.supervisor.parent.exits import Exit, ExitKind, classify, needed_force
from pfsup.supervisor.parent.table import NEXT, RUNNING, Actual, Fact, drawing, following

FROM_OUTSIDE = (Fact.SAID_READY, Fact.SAID_WAITING, Fact.SAID_GOING_ON, Fact.EXITED, Fact.KILL_SENT, Fact.TOLD_TO_STOP)


def test_every_state_has_a_row():
    assert set(NEXT) == set(Actual)


@pytest.mark.parametrize("actual", sorted(RUNNING))
def test_a_running_child_may_say_do_or_suffer_anything_at_any_time(actual: Actual):
    assert all(following(actual, fact) in Actual for fact in FROM_OUTSIDE)


@pytest.mark.parametrize("actual", sorted(RUNNING))
def test_an_end_always_leads_through_clearing(actual: Actual):
    assert following(actual, Fact.EXITED) is Actual.CLEARING


@pytest.mark.parametrize("actual", sorted(set(Actual) - RUNNING))
def test_a_child_without_a_process_cannot_end(actual: Actual):
    with pytest.raises(LookupError, match="no such step"):
        following(actual, Fact.EXITED)


def test_every_state_is_reached():
    assert {after for row in NEXT.values() for after in row.values()} == set(Actual)


def test_the_drawing_shows_every_step_that_changes_something():
    lines = drawing().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    booting --> ready: said ready" in lines


@pytest.mark.parametrize(
    ("code", "signum", "ours", "kind"),
    [
        (0, None, "", ExitKind.OK),
        (78, None, "", ExitKind.CONFIG),
        (75, None, "", ExitKind.TEMPFAIL),
        (1, None, "", ExitKind.CRASH),
        (70, None, "", ExitKind.CRASH),
        (None, 11, "", ExitKind.CRASH),
        (None, 9, "", ExitKind.OOM_LIKE),
        (None, 9, "no beat", ExitKind.KILLED_BY_US),
        (0, None, "no beat", ExitKind.OK),
    ],
)
def test_ends_are_told_apart(code: int | None, signum: int | None, ours: str, kind: ExitKind):
    assert classify(code=code, signum=signum, killed_by_us=ours) is kind


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (Exit(kind=ExitKind.OOM_LIKE, signal=9), "signal 9, not by us (out of memory?)"),
        (Exit(kind=ExitKind.KILLED_BY_US, signal=9, why="no beat for 10 s"), "killed by us: no beat for 10 s"),
        (Exit(kind=ExitKind.CRASH, signal=11), "signal 11"),
        (Exit(kind=ExitKind.CRASH, code=70), "exit 70"),
        (Exit(kind=ExitKind.NO_FORK, why="too many processes"), "cannot fork: too many processes"),
    ],
)
def test_an_end_is_one_line_for_people(end: Exit, text: str):
    assert end.text == text


def test_force_is_a_kill_or_an_exit_that_was_not_announced():
    assert needed_force(Exit(kind=ExitKind.KILLED_BY_US, signal=9), bye=None)
    assert needed_force(Exit(kind=ExitKind.CRASH, code=1), bye=0)
    assert not needed_force(Exit(kind=ExitKind.CRASH, code=70), bye=70)
    assert not needed_force(Exit(kind=ExitKind.OK, code=0), bye=None)
