"""The control socket, the lock and the files beside them, of a real `pfsup start`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from pfsup.config.errors import NotPermitted
from pfsup.supervisor.cli.client import Refused, ask
from support.supervisor import HANG_S, Supervisor
from support.waiting import until

CALM = {"a": "children:Calm"}
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")


def test_the_socket_is_born_0600_whatever_the_umask():
    before = os.umask(0)
    try:
        with Supervisor(domains=CALM) as pfsup:
            assert stat.S_IMODE(pfsup.socket_path.stat().st_mode) == 0o600
            assert stat.S_IMODE(pfsup.socket_path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@as_root
def test_another_user_is_told_whose_socket_it_is():
    with Supervisor(domains=CALM) as pfsup, _as_nobody(), pytest.raises(NotPermitted, match="belongs to uid 0"):
        ask(pfsup.socket_path, "status")


@as_root
def test_another_user_who_can_reach_the_socket_is_refused_by_the_kernels_word():
    with Supervisor(domains=CALM) as pfsup:
        for path, mode in ((pfsup.directory, 0o755), (pfsup.socket_path.parent, 0o755), (pfsup.socket_path, 0o666)):
            path.chmod(mode)
        with _as_nobody(), pytest.raises(Refused, match="cannot answer uid 65534") as refused:
            ask(pfsup.socket_path, "stop")
        assert refused.value.exit_code == 77
        assert pfsup.own()["clients_refused"] == 1


def test_garbage_half_lines_and_huge_lines_are_counted_and_shrugged_off():
    with Supervisor(domains=CALM) as pfsup:
        with pfsup.connect() as garbage:
            garbage.sendall(b"\x00\xff\x1b[2J\n[1]\n")
            assert _answer(garbage)["code"] == 2
        with pfsup.connect() as half:
            half.sendall(b'{"verb": "sta')
            half.shutdown(socket.SHUT_WR)
            assert half.recv(10) == b""
        with pfsup.connect() as huge:
            assert _send_all(huge, b"x" * (1 << 20))
        with pfsup.connect() as odd:
            odd.sendall(b'{"verb": {"a": [1]}}\n')
            assert "the verbs are" in _answer(odd)["error"]
        until(lambda: pfsup.own()["bad_lines"] >= 3)
        assert pfsup.child("a")["generation"] == 1


def test_a_hundred_idle_clients_lock_nobody_out():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        idle = [pfsup.connect() for _ in range(100)]
        own = pfsup.own()
        assert own["clients"] <= 16
        assert pfsup.cli("status").returncode == 0
        assert pfsup.own()["clients_evicted"] >= 84
        for sock in idle:
            sock.close()


def test_two_hundred_clients_that_come_and_go_leave_no_descriptor():
    with Supervisor(domains=CALM) as pfsup:
        before = pfsup.own()["fds"]
        for _ in range(200):
            pfsup.connect().close()
        until(lambda: pfsup.own()["fds"] <= before)


def test_a_second_start_ends_with_75_and_names_the_first():
    with Supervisor(domains=CALM) as pfsup:
        second = pfsup.cli("start")
        assert second.returncode == 75
        assert f"pid {pfsup.parent_pid} holds" in second.stderr
        assert pfsup.own()["pid"] == pfsup.parent_pid


def test_two_starts_at_once_exactly_one_runs():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.signal(signal.SIGTERM)
        pfsup.wait_exit()
        first, second = pfsup.launch(), pfsup.launch()
        until(lambda: first.poll() is not None or second.poll() is not None)
        loser, winner = (first, second) if first.poll() is not None else (second, first)
        pfsup.process = winner
        assert loser.returncode == 75
        until(lambda: _pid(pfsup) == winner.pid)


@pytest.mark.parametrize("text", ["1\n", "not a number\n", "", "-5", "99999999999999999999\n", "\x00\xff"])
def test_whatever_the_pid_file_says_the_lock_decides(text: str):
    with Supervisor(domains=CALM) as pfsup:
        pid_file = pfsup.socket_path.with_suffix(".pid")
        pfsup.signal(signal.SIGKILL)
        pfsup.wait_exit()
        pid_file.write_text(text)
        pfsup.start()
        assert pid_file.read_text() == f"{pfsup.parent_pid}\n"


def test_a_stale_socket_never_blocks_a_start():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.signal(signal.SIGKILL)
        pfsup.wait_exit()
        assert pfsup.socket_path.is_socket()
        assert pfsup.cli("status").returncode == 69
        pfsup.start()
        pfsup.wait_ready()


def test_a_stop_removes_socket_and_pid_file():
    with Supervisor(domains=CALM) as pfsup:
        assert pfsup.stop() == 0
        pfsup.wait_exit()
        assert {path.suffix for path in pfsup.socket_path.parent.iterdir()} == {".child", ".lock"}


def test_a_stop_leaves_a_socket_that_is_not_its_own():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.socket_path.unlink()
        pfsup.socket_path.write_text("someone else's")
        pfsup.signal(signal.SIGTERM)
        assert pfsup.wait_exit() == 0
        assert pfsup.socket_path.read_text() == "someone else's"


def test_usr1_creates_a_lost_socket_anew_and_reopens_the_log():
    with Supervisor(domains=CALM, config='[log]\nfile = "LOG"\n') as pfsup:
        pfsup.wait_ready()
        log = pfsup.directory / "LOG"
        log.rename(pfsup.directory / "LOG.1")
        pfsup.socket_path.unlink()
        pfsup.signal(signal.SIGUSR1)
        until(pfsup.socket_path.is_socket)
        pfsup.ask("restart", name="a")
        pfsup.wait_state("a", "ready", generation=2)
        assert "a started" in log.read_text()


def test_hup_without_a_lost_terminal_is_told_that_reload_is_not_there():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        pfsup.signal(signal.SIGHUP)
        until(lambda: "reload is not available in this version" in pfsup.log())
        assert pfsup.child("a")["generation"] == 1


def test_stop_status_and_wake_say_69_when_nobody_runs():
    with Supervisor(domains=CALM) as pfsup:
        assert pfsup.stop() == 0
        for words in (("stop",), ("status",), ("wake",), ("enable", "a")):
            done = pfsup.cli(*words)
            assert (done.returncode, done.stdout) == (69, "")
            assert "start one with: pfsup start" in done.stderr


def test_stop_waits_until_the_supervisor_is_gone():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        assert pfsup.stop() == 0
        assert pfsup.process is not None
        assert pfsup.process.wait(HANG_S) == 0
        assert not pfsup.socket_path.exists()


def test_status_is_a_table_for_people_and_an_object_for_machines():
    with Supervisor(domains={"a": "children:Calm", "w": "children:Waits"}) as pfsup:
        pfsup.wait_state("w", "waiting")
        pfsup.wait_state("a", "ready")
        table = pfsup.cli("status")
        assert table.returncode == 3
        lines = table.stdout.splitlines()
        assert lines[1].split()[:4] == ["NAME", "STATE", "PID", "GEN"]
        assert lines[2].split()[:3] == ["a", "ready", str(pfsup.pid("a"))]
        assert lines[3].endswith("schema pfsup is missing, run: pfsup migrate")
        status = json.loads(pfsup.cli("status", "--json").stdout)
        assert status["schema"] == 1
        assert [child["state"] for child in status["children"]] == ["ready", "waiting"]


def test_probe_answers_by_exit_code_alone():
    with Supervisor(domains={"w": "children:Waits"}) as pfsup:
        pfsup.wait_state("w", "waiting")
        assert pfsup.cli("probe", "live").returncode == 0
        assert pfsup.cli("probe", "ready").returncode == 1
        pfsup.open_gate("w", "go")
        pfsup.wait_state("w", "ready")
        assert pfsup.cli("probe", "ready").returncode == 0
        pfsup.stop()
        assert pfsup.cli("probe", "live").returncode == 1
        assert pfsup.cli("probe", "sideways").returncode == 2


def test_an_unknown_child_on_the_command_line_is_a_usage_error():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.stop()
        done = pfsup.cli("start", "--only", "nobody")
        assert done.returncode == 2
        assert "not among the enabled children a" in done.stderr


def _answer(sock: socket.socket) -> dict[str, Any]:
    return json.loads(sock.makefile("rb").readline())


def _send_all(sock: socket.socket, block: bytes) -> bool:
    try:
        sock.sendall(block)
    except OSError:
        return True  # it hung up on us in the middle, as it may
    return sock.makefile("rb").read() != b"never"


def _pid(pfsup: Supervisor) -> int:
    try:
        return pfsup.own()["pid"]
    except OSError:
        return 0


@contextmanager
def _as_nobody() -> Generator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
