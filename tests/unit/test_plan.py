"""plan(state, now): what is done when, under a clock that the test owns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pfsup.supervisor.parent import changes
from pfsup.supervisor.parent.plan import RULES, Doubt, Dump, Kill, Rest, Spawn, Stop, next_due, plan
from pfsup.supervisor.parent.spec import Limits
from pfsup.supervisor.parent.table import RUNNING, Actual, Desired
from support.paper import BOTH, Paper


def test_every_pair_of_wanted_and_actual_has_a_rule():
    assert set(RULES) == {(desired, actual) for desired in Desired for actual in Actual}


def test_a_new_child_is_started_at_once():
    assert Paper().settle() == [Spawn("a")]


def test_one_turn_forks_at_most_once():
    paper = Paper({"a": "recovery", "b": "recovery", "c": "main"})
    assert plan(paper.state, paper.now) == [Spawn("a")]
    assert paper.settle() == [Spawn("a"), Spawn("b"), Spawn("c")]


def test_a_calm_ready_child_needs_nothing_before_its_silence_deadline():
    paper = Paper()
    paper.get_ready()
    paper.settle()
    assert next_due(paper.state, paper.now) == paper.now + 10.0


def test_a_child_that_is_not_ready_in_time_writes_its_stacks_and_is_killed():
    paper = Paper()
    acts = paper.run_until(1031)
    assert acts == [Spawn("a"), Dump("a"), Kill("a", "not ready within 30 s")]
    assert [at for at, _ in paper.done] == [1000.0, 1030.0, 1030.5]


def test_a_booting_child_that_only_talks_is_killed_at_the_same_deadline():
    paper = Paper()
    for second in range(40):
        paper.run_until(1000 + second)
        if paper.child().actual is Actual.BOOTING:
            paper.hear(type="beat", phase="booting")
    assert (1030.5, Kill("a", "not ready within 30 s")) in paper.done


def test_silence_is_not_judged_while_booting():
    paper = Paper(limits=Limits(boot_s=3600))
    assert paper.run_until(2000) == [Spawn("a")]


def test_the_boot_clock_stands_still_while_the_child_waits():
    paper = Paper(limits=Limits(beat_s=1e6))
    paper.settle()
    paper.now += 10
    paper.hear(type="waiting", reason="schema pfsup is missing, run: pfsup migrate")
    assert paper.run_until(5000) == []
    assert paper.child().actual is Actual.WAITING
    paper.hear(type="waiting", reason=None)
    assert paper.child().actual is Actual.BOOTING
    assert next_due(paper.state, paper.now) == 5020


def test_a_child_that_waited_after_it_was_ready_is_ready_again():
    paper = Paper()
    paper.get_ready()
    paper.hear(type="waiting", reason="the broker is away")
    assert paper.child().actual is Actual.WAITING
    paper.hear(type="waiting", reason=None)
    assert paper.child().actual is Actual.READY


def test_silence_is_followed_by_a_dump_a_kill_and_a_start_after_the_back_off():
    paper = Paper()
    paper.get_ready()
    assert paper.run_until(1012) == [Dump("a"), Kill("a", "no beat for 10 s")]
    paper.end(code=None, signum=9)
    retry = next_due(paper.state, paper.now)
    assert 0.4 <= retry - paper.now <= 0.6
    assert paper.run_until(1013) == [Spawn("a")]


def test_a_beat_after_the_dump_saves_the_child():
    paper = Paper()
    paper.get_ready()
    assert paper.run_until(1010) == [Dump("a")]
    paper.hear(type="beat")
    assert paper.run_until(1019) == []
    assert paper.run_until(1020) == [Dump("a")]


def test_delays_double_from_half_a_second_to_thirty_with_a_fifth_of_jitter():
    paper = Paper()
    delays: list[float] = []
    for _ in range(12):
        paper.settle()
        paper.end(code=1)
        delays.append(paper.child().retry - paper.now)
        paper.now = paper.child().retry
    wanted = [min(30.0, 0.5 * 2**n) for n in range(12)]
    assert all(0.8 * w <= d <= min(30.0, 1.2 * w) for d, w in zip(delays, wanted, strict=True))


@pytest.mark.parametrize(("ready_s", "failures"), [(59.9, 4), (60.0, 1)])
def test_a_minute_of_being_ready_starts_the_back_off_afresh(ready_s: float, failures: int):
    paper = Paper(limits=Limits(beat_s=1e6))
    for _ in range(3):
        paper.settle()
        paper.end(code=1)
        paper.now = paper.child().retry
    paper.get_ready()
    paper.now += ready_s
    paper.end(code=1)
    assert paper.child().backoff.failures == failures


def test_a_configuration_error_waits_the_longest_delay_at_once():
    paper = Paper()
    paper.settle()
    paper.end(code=78)
    assert paper.child().retry - paper.now >= 24


def test_a_refused_fork_backs_off_like_a_crash():
    paper = Paper()
    changes.spawn_failed(paper.child(), "Resource temporarily unavailable", paper.now, 0)
    assert paper.child().actual is Actual.BACKOFF
    assert 0.4 <= next_due(paper.state, paper.now) - paper.now <= 0.6


def test_the_new_generation_waits_until_the_old_group_is_empty():
    paper = Paper()
    paper.get_ready()
    paper.group_is_empty = False
    paper.end(code=1)
    paper.run_until(1100)
    assert paper.child().actual is Actual.CLEARING
    assert next_due(paper.state, paper.now) - paper.now <= 1.0
    paper.group_is_empty = True
    assert Spawn("a") in paper.run_until(1102)


def test_a_restart_drains_the_old_one_and_starts_the_new_one_without_a_pause():
    paper = Paper()
    paper.get_ready()
    paper.child().desired = Desired.RESTART
    assert paper.settle() == [Stop("a", 1025.0)]
    paper.end(code=0)
    assert paper.settle() == [Spawn("a")]
    assert paper.child().desired is Desired.UP


def test_disabling_drains_kills_at_the_deadline_and_rests():
    paper = Paper()
    paper.get_ready()
    paper.child().desired = Desired.DOWN
    assert paper.run_until(1025) == [Stop("a", 1025.0), Kill("a", "its stop deadline passed")]
    paper.end(code=None, signum=9)
    assert paper.settle() == [Rest("a")]
    assert paper.run_until(9999) == []


def test_what_outlives_a_kill_is_called_unkillable_and_asks_for_nothing_more():
    paper = Paper()
    paper.run_until(1030.5)
    assert paper.run_until(9999) == [Doubt("a")]
    assert paper.child().actual is Actual.UNKILLABLE


def test_a_stop_takes_recovery_down_first_and_the_rest_after_it():
    paper = Paper(BOTH)
    paper.get_ready("rd")
    paper.ask_to_stop()
    assert paper.settle() == [Stop("r", 1015.0)]
    paper.now += 3
    paper.hear("d", type="beat")
    paper.end("r")
    assert paper.settle() == [Rest("r"), Stop("d", 1025.0)]
    assert not paper.finished
    paper.end("d")
    paper.settle()
    assert paper.finished


def test_a_stop_is_over_within_its_total_budget_whoever_is_deaf():
    paper = Paper(BOTH, limits=Limits(beat_s=1e6))
    paper.get_ready("rd")
    paper.ask_to_stop()
    assert paper.run_until(1015) == [Stop("r", 1015.0), Kill("r", "its stop deadline passed")]
    paper.end("r", code=None, signum=9)
    assert paper.run_until(1025) == [Rest("r"), Stop("d", 1025.0), Kill("d", "its stop deadline passed")]
    paper.end("d", code=None, signum=9)
    paper.settle()
    assert paper.finished
    assert [c.forced for c in paper.state.children.values()] == [True, True]


def test_the_second_signal_leaves_two_seconds_and_tells_everyone():
    paper = Paper(BOTH)
    paper.get_ready("rd")
    paper.ask_to_stop()
    paper.settle()
    paper.now += 1
    paper.ask_to_stop()
    assert paper.settle() == [Stop("r", 1003.0), Stop("d", 1003.0)]
    assert paper.run_until(1003) == [Kill("r", "its stop deadline passed"), Kill("d", "its stop deadline passed")]


def test_the_second_signal_never_makes_a_stop_longer():
    paper = Paper(limits=Limits(stop_s=1.0))
    paper.get_ready()
    paper.ask_to_stop()
    paper.ask_to_stop()
    assert paper.settle() == [Stop("a", 1000.6)]


def test_the_third_signal_kills_everyone_at_once():
    paper = Paper(BOTH)
    paper.get_ready("rd")
    for _ in range(3):
        paper.ask_to_stop()
    assert paper.settle() == [Kill("r", "a third signal"), Kill("d", "a third signal")]


def test_a_stop_while_booting_does_not_wait_for_the_boot():
    paper = Paper()
    paper.settle()
    paper.ask_to_stop()
    assert paper.settle() == [Stop("a", 1015.0)]


def test_a_stop_while_backing_off_is_over_at_once():
    paper = Paper()
    paper.settle()
    paper.end(code=1)
    paper.ask_to_stop()
    assert paper.settle() == [Rest("a")]
    assert paper.finished


def test_a_child_that_crashes_by_itself_in_its_drain_was_not_killed():
    paper = Paper()
    paper.get_ready()
    paper.ask_to_stop()
    paper.settle()
    paper.hear(type="bye", code=70)
    paper.end(code=70)
    assert not paper.child().forced


def test_a_drain_that_its_last_resort_ended_counts_as_force():
    paper = Paper()
    paper.get_ready()
    paper.ask_to_stop()
    paper.settle()
    paper.end(code=1)
    assert paper.child().forced


def test_a_stop_ends_even_if_something_is_unkillable():
    paper = Paper()
    paper.get_ready()
    paper.ask_to_stop()
    paper.run_until(1035)
    assert paper.child().actual is Actual.UNKILLABLE
    assert paper.finished


def test_something_unkillable_holds_up_nobody_elses_stop():
    paper = Paper(BOTH, limits=Limits(beat_s=1e6))
    paper.get_ready("rd")
    paper.ask_to_stop()
    paper.run_until(1020)
    assert paper.child("r").actual is Actual.UNKILLABLE
    assert paper.child("d").actual is Actual.STOPPING
    paper.end("d")
    paper.run_until(1035)
    assert paper.finished


@pytest.mark.parametrize("age_s", [10**300, -1, True, "x", None, 3.5])
def test_whatever_a_child_says_of_its_phases_age_the_supervisor_goes_on(age_s: object):
    paper = Paper()
    paper.get_ready()
    paper.hear(type="beat", phase="idle", phase_age_s=age_s, figures=[1], dropped="x")
    assert paper.child().said.phase_since <= paper.now
    assert paper.child().said.figures == {}


def test_an_overslept_parent_grants_one_full_period():
    paper = Paper(BOTH, limits=Limits(boot_s=15))
    paper.settle()
    paper.hear("r", type="ready")
    paper.now += 30
    changes.grant_a_period(paper.state, paper.now)
    assert paper.settle() == []
    assert next_due(paper.state, paper.now) == paper.now + 10


def test_a_grant_never_shortens_a_boot():
    paper = Paper(limits=Limits(boot_s=300))
    paper.settle()
    changes.grant_a_period(paper.state, paper.now)
    assert next_due(paper.state, paper.now) == 1300


EVENTS = st.sampled_from(
    ["ready", "waiting", "going on", "beat", "end", "crash", "killed", "stop", "disable", "enable", "restart", "hold"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.sampled_from("rd"), st.sampled_from([0.0, 0.01, 0.5, 3.0, 31.0])), max_size=40))
def test_no_history_makes_the_loop_spin(history: list[tuple[str, str, float]]):
    """After the due acts are done nothing is due now, whatever happened before: a stale deadline once took a core."""
    paper = Paper(BOTH)
    for event, name, pause_s in history:
        paper.run_until(paper.now + pause_s)
        _happen(paper, event, name)
    paper.settle()


def _happen(paper: Paper, event: str, name: str) -> None:
    child = paper.child(name)
    running = child.actual in RUNNING
    match event:
        case "ready" | "beat" if running:
            paper.hear(name, type=event)
        case "waiting" if running:
            paper.hear(name, type="waiting", reason="something")
        case "going on" if running:
            paper.hear(name, type="waiting", reason=None)
        case "end" | "crash" if running:
            paper.end(name, code=int(event == "crash"))
        case "killed" if running:
            paper.end(name, code=None, signum=9)
        case "stop":
            paper.ask_to_stop()
        case "enable" | "disable" | "restart":
            child.desired = {"enable": Desired.UP, "disable": Desired.DOWN, "restart": Desired.RESTART}[event]
        case "hold":
            paper.group_is_empty = not paper.group_is_empty
        case _:
            pass
