"""What the parent promises about its children (ACCEPTANCE.md, "Processes"), on real forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.supervisor import Supervisor, descriptors, is_alive
from support.waiting import until

TWO = {"a": "children:Calm", "b": "children:Calm"}
FAULTY = """
import os, pathlib, pfsup.__main__
from pfsup.supervisor.parent.loop import Parent
turn = Parent._turn

def faulty(parent):
    if pathlib.Path(os.environ["GATES_DIR"], "fault").exists():
        raise RuntimeError("told to")
    turn(parent)

Parent._turn = faulty
pfsup.__main__.main()
"""


def test_a_killed_child_is_restarted_and_the_others_are_undisturbed():
    with Supervisor(domains=TWO) as pfsup:
        pfsup.wait_ready()
        other = pfsup.pid("b")
        os.kill(pfsup.pid("a"), signal.SIGKILL)
        again = pfsup.wait_state("a", "ready", generation=2)
        assert again["last_exit"]["kind"] == "oom-like"
        assert "not by us" in again["last_exit"]["text"]
        assert (pfsup.pid("b"), pfsup.child("b")["generation"]) == (other, 1)


def test_the_children_end_with_a_killed_parent_even_one_stuck_in_c():
    with Supervisor(domains={"a": "children:Calm", "c": "children:StuckInC"}) as pfsup:
        pfsup.wait_ready()
        pids = [pfsup.pid("a"), pfsup.pid("c")]
        pfsup.ask("wake", name="c")
        pfsup.wait_mark("c", "woken")
        pfsup.signal(signal.SIGKILL)
        pfsup.wait_exit()
        until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_drains_and_ends_with_0(number: signal.Signals):
    with Supervisor(domains=TWO) as pfsup:
        pfsup.wait_ready()
        pfsup.signal(number)
        assert pfsup.wait_exit() == 0
        assert len(pfsup.marks("a", "drained")) == len(pfsup.marks("b", "drained")) == 1


def test_a_drain_is_waited_for_and_each_child_gets_one_term():
    with Supervisor(domains={"t": "children:CountsTerms"}) as pfsup:
        pfsup.wait_ready()
        pfsup.signal(signal.SIGTERM)
        pfsup.wait_mark("t", "drained")
        assert pfsup.child("t")["state"] == "stopping"
        pfsup.open_gate("t", "go")
        assert pfsup.wait_exit() == 0
        assert len(pfsup.marks("t", "term")) == 1


def test_a_child_that_ignores_its_drain_is_killed_at_the_deadline_and_the_exit_code_says_so():
    with Supervisor(domains={"d": "children:Deaf"}, supervisor={"stop_timeout": "1s"}) as pfsup:
        pfsup.wait_mark("d", "deaf")
        assert pfsup.stop() == 4
        assert pfsup.wait_exit() == 4


def test_a_second_signal_cuts_the_drain_short():
    with Supervisor(domains={"s": "children:Slow"}, supervisor={"stop_timeout": "10m"}) as pfsup:
        pfsup.wait_ready()
        pfsup.signal(signal.SIGTERM)
        pfsup.wait_mark("s", "drained")
        pfsup.signal(signal.SIGTERM)
        assert pfsup.wait_exit() == 4


def test_a_third_signal_kills_at_once():
    with Supervisor(domains={"s": "children:Deaf"}, supervisor={"stop_timeout": "10m"}) as pfsup:
        pfsup.wait_mark("s", "deaf")
        for said in ("stopping", "hastened", "killing what is left"):
            pfsup.signal(signal.SIGTERM)
            until(lambda said=said: said in pfsup.log())
        assert pfsup.wait_exit() == 4
        assert "a third signal" in pfsup.log()


def test_a_child_stuck_in_c_is_dumped_killed_and_replaced():
    limits = {"beat_interval": "100ms", "beat_timeout": "500ms"}
    with Supervisor(domains={"c": "children:StuckInC"}, supervisor=limits) as pfsup:
        pfsup.wait_ready()
        pfsup.ask("wake", name="c")
        again = pfsup.wait_state("c", "ready", generation=2)
        assert again["last_exit"]["text"] == "killed by us: no beat for 0.5 s"
        assert "children.py" in pfsup.log()  # the dump of its stacks


def test_a_child_that_never_gets_ready_is_killed_at_its_boot_deadline():
    with Supervisor(domains={"n": "children:NeverReady"}, supervisor={"boot_timeout": "500ms"}) as pfsup:
        until(lambda: pfsup.child("n")["generation"] >= 2)
        assert pfsup.child("n")["last_exit"]["text"] == "killed by us: not ready within 0.5 s"


def test_a_busy_boot_longer_than_a_beat_timeout_is_not_killed():
    limits = {"beat_interval": "50ms", "beat_timeout": "300ms"}
    with Supervisor(domains={"b": "children:SlowBoot"}, supervisor=limits) as pfsup:
        assert pfsup.wait_state("b", "ready")["generation"] == 1


def test_a_waiting_child_says_what_it_lacks_and_its_boot_clock_stands_still():
    limits = {"boot_timeout": "300ms", "beat_interval": "50ms", "beat_timeout": "10s"}
    with Supervisor(domains={"w": "children:Waits"}, supervisor=limits) as pfsup:
        waiting = pfsup.wait_state("w", "waiting")
        assert waiting["waiting"] == "schema pfsup is missing, run: pfsup migrate"
        until(lambda: pfsup.child("w")["beats"] > 12)  # twice the boot timeout has passed
        assert pfsup.cli("status").returncode == 3
        pfsup.open_gate("w", "go")
        assert pfsup.wait_state("w", "ready")["generation"] == 1


def test_a_crashing_child_backs_off_and_leaves_the_others_alone():
    with Supervisor(domains={"r": "children:Raises", "a": "children:Calm"}) as pfsup:
        until(lambda: pfsup.child("r")["generation"] >= 2)
        crashed = pfsup.child("r")
        assert crashed["last_exit"]["code"] == 70
        assert pfsup.wait_state("a", "ready")["generation"] == 1
        assert "RuntimeError: told to crash" in pfsup.log()


def test_a_configuration_error_of_a_child_is_shown_and_retried_slowly():
    with Supervisor(domains={"m": "children:Misconfigured"}) as pfsup:
        off = pfsup.wait_state("m", "backoff")
        assert off["last_exit"]["kind"] == "config"
        assert off["retry_in_s"] > 20
        assert "wanted a colour, got 7" in pfsup.log()


def test_ready_that_was_said_before_the_end_is_read_before_the_end():
    with Supervisor(domains={"r": "children:ReadyThenGone"}) as pfsup:
        pfsup.wait_mark("r", "gone")
        until(lambda: "r is ready" in pfsup.log())


def test_all_that_was_said_before_the_end_is_read_however_late_the_supervisor_is():
    with Supervisor(domains={"t": "children:TalksThenGone"}) as pfsup:
        pfsup.wait_mark("t", "there")
        os.kill(pfsup.parent_pid, signal.SIGSTOP)
        pfsup.open_gate("t", "go")
        pfsup.wait_mark("t", "gone")
        os.kill(pfsup.parent_pid, signal.SIGCONT)
        until(lambda: " ended: " in pfsup.log())
        assert "t is ready" in pfsup.log().partition(" ended: ")[0]


def test_a_fault_of_the_supervisors_own_is_logged_and_takes_the_children_along():
    with Supervisor(domains=TWO, start=False) as pfsup:
        words = pfsup.start_command[3:]
        with pfsup.log_path.open("ab") as log:
            pfsup.process = subprocess.Popen([sys.executable, "-c", FAULTY, *words], stderr=log, env=pfsup.environ)
        until(lambda: pfsup.is_ready)
        (pfsup.gates / "fault").touch()
        assert pfsup.wait_exit() == 70
        assert "ends by a fault of its own" in pfsup.log()
        assert "RuntimeError: told to" in pfsup.log()
        assert not pfsup.socket_path.exists()


def test_the_next_generation_starts_only_after_the_old_group_is_gone():
    with Supervisor(domains={"h": "children:LeavesHelper"}) as pfsup:
        pfsup.wait_ready()
        helper = int(pfsup.wait_mark("h", "helper")[0])
        os.kill(pfsup.pid("h"), signal.SIGKILL)
        pfsup.wait_state("h", "ready", generation=2)
        assert not is_alive(helper)


def test_a_drain_ends_although_a_thread_and_a_task_do_not():
    with Supervisor(domains={"l": "children:LeavesTasks"}, supervisor={"stop_timeout": "20s"}) as pfsup:
        pfsup.wait_ready()
        assert pfsup.stop() == 0
        assert "ignores its cancellation" in pfsup.log()


def test_a_child_locked_up_in_its_drain_writes_its_stacks_and_leaves_by_force():
    with Supervisor(domains={"l": "children:LocksUpInDrain"}, supervisor={"stop_timeout": "3s"}) as pfsup:
        pfsup.wait_ready()
        assert pfsup.stop() == 4
        assert "Timeout" in pfsup.log()
        assert "children.py" in pfsup.log()


def test_a_stopped_parent_kills_nobody_when_it_goes_on():
    limits = {"beat_interval": "50ms", "beat_timeout": "300ms"}
    with Supervisor(domains=TWO, supervisor=limits) as pfsup:
        pfsup.wait_ready()
        beats = pfsup.child("a")["beats"]
        pfsup.signal(signal.SIGSTOP)
        over = time.monotonic() + 0.9  # three beat timeouts: the promise is about this very length of time
        until(lambda: time.monotonic() > over)
        pfsup.signal(signal.SIGCONT)
        until(lambda: pfsup.child("a")["beats"] > beats + 20)
        assert [child["generation"] for child in pfsup.status()["children"]] == [1, 1]


def test_stop_of_idle_children_does_not_use_its_budget_up():
    with Supervisor(domains=TWO, supervisor={"stop_timeout": "10m"}) as pfsup:
        pfsup.wait_ready()
        assert pfsup.stop() == 0


def test_recovery_domains_stop_first_and_dispatch_goes_on_meanwhile():
    """With a recovery domain held in its drain, the main group is not yet told to stop."""
    with Supervisor(domains={"s": "children:Slow", "a": "children:Calm"}) as pfsup:
        pfsup.wait_ready()
        pfsup.signal(signal.SIGTERM)
        pfsup.wait_state("a", "disabled")
        assert pfsup.child("s")["state"] == "stopping"
        pfsup.open_gate("s", "go")
        assert pfsup.wait_exit() == 0


@pytest.mark.timeout(120)  # traced for coverage, 200 starts take more than 30 s
def test_many_restarts_leave_the_same_descriptors_and_no_zombies():
    _restart_often(200)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_2000_restarts_leave_the_same_descriptors_and_no_zombies():
    _restart_often(2000)


def test_a_calm_parent_turns_only_for_beats_and_questions():
    """A stale deadline would add thousands of turns a second; here every turn has its beat or its question."""
    with Supervisor(domains=TWO, supervisor={"beat_interval": "50ms", "beat_timeout": "10s"}) as pfsup:
        pfsup.wait_ready()
        with pfsup.connect() as sock, sock.makefile("rb") as answers:
            asked: list[dict[str, Any]] = []

            def ask() -> int:
                sock.sendall(b'{"verb":"status"}\n')
                asked.append(json.loads(answers.readline()))
                return _beats(asked[-1]) - _beats(asked[0])

            until(lambda: ask() >= 40)
        turns = asked[-1]["supervisor"]["turns"] - asked[0]["supervisor"]["turns"]
        seconds = asked[-1]["supervisor"]["uptime_s"] - asked[0]["supervisor"]["uptime_s"]
        assert turns <= _beats(asked[-1]) - _beats(asked[0]) + len(asked) + 3 * seconds


def test_a_wake_of_a_peer_is_passed_on():
    with Supervisor(domains={"w": "children:WakesPeer", "peer": "children:Calm"}) as pfsup:
        pfsup.wait_ready()
        assert pfsup.cli("wake", "w").returncode == 0
        assert pfsup.wait_mark("peer", "woken") == [str(pfsup.pid("peer"))]


def test_garbage_on_a_childs_link_is_counted_and_shrugged_off():
    with Supervisor(domains={"f": "children:Floods"}) as pfsup:
        until(lambda: pfsup.own()["bad_lines"] >= 3)
        assert pfsup.child("f")["generation"] == 1


def test_disable_enable_and_restart_at_run_time():
    with Supervisor(domains=TWO) as pfsup:
        pfsup.wait_ready()
        assert pfsup.cli("disable", "a").returncode == 0
        off = pfsup.wait_state("a", "disabled")
        assert off["override"] is True
        assert pfsup.cli("status").returncode == 0
        assert pfsup.cli("restart", "a").returncode == 1
        assert pfsup.cli("enable", "a").returncode == 0
        pfsup.wait_state("a", "ready", generation=2)
        assert pfsup.cli("restart", "a").returncode == 0
        again = pfsup.wait_state("a", "ready", generation=3)
        assert again["last_exit"]["kind"] == "ok"
        assert pfsup.cli("restart", "nobody").returncode == 2


def test_only_runs_only_what_is_named():
    with Supervisor(domains=TWO, args=["--only", "b"]) as pfsup:
        assert [child["name"] for child in pfsup.status()["children"]] == ["b"]


def test_a_child_has_its_own_group_name_and_input_and_none_of_the_supervisors_descriptors():
    with Supervisor(domains={"a": "children:Calm", "s": "children:ShowsItself"}) as pfsup:
        pfsup.wait_ready()
        pid = pfsup.pid("s")
        assert os.getpgid(pid) == pid
        assert Path(f"/proc/{pid}/comm").read_text() == "pfsup:s\n"
        targets = pfsup.marks("s", "fds")
        assert targets[0] == "/dev/null"
        parents = set(descriptors(pfsup.parent_pid))
        assert {t for t in parents & set(targets) if t.startswith(("socket:", "pipe:")) or t.endswith(".lock")} == set()


def test_systemds_variables_stay_with_the_supervisor():
    notify = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000", "LISTEN_FDS": "1"}
    with Supervisor(domains={"s": "children:ShowsItself"}, environ=notify) as pfsup:
        pfsup.wait_ready()
        assert set(notify).isdisjoint(pfsup.marks("s", "environ"))


def test_children_share_what_the_supervisor_preloaded_and_nothing_strange_is_open():
    """preload on, as users run it: the modules of the children are in the parent, one thread, no unknown descriptor."""
    with Supervisor(domains=TWO, supervisor={"preload": True}) as pfsup:
        pfsup.wait_ready()
        maps = Path(f"/proc/{pfsup.parent_pid}/maps").read_text()
        assert "uvloop" in maps
        own = pfsup.own()
        assert (own["strange_fds"], own["strange_tasks"]) == (0, 0)


def _restart_often(times: int) -> None:
    with Supervisor(domains={"a": "children:Calm"}) as pfsup:
        pfsup.wait_ready()
        before = pfsup.own()["fds"]
        for generation in range(2, times + 2):
            pfsup.ask("restart", name="a")
            pfsup.wait_state("a", "ready", generation=generation)
        own = pfsup.own()
        assert own["reaped"] == times
        assert (own["strange_fds"], own["strange_tasks"]) == (0, 0)
        until(lambda: pfsup.own()["fds"] <= before)
        assert len(_children_of(pfsup.parent_pid)) == 1


def _children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _beats(status: dict[str, Any]) -> int:
    return sum(child["beats"] for child in status["children"])
