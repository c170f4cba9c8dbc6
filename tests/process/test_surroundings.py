"""The supervisor and what surrounds it: terminals, logs, systemd, foreign modules, its own command line."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pfsup.shared.frames import encode
from support.supervisor import HANG_S, SUPPORT, Supervisor, descriptors
from support.terminal import on_a_terminal
from support.waiting import until

CALM = {"a": "children:Calm"}
HEAVY = ("click", "pydantic", "psycopg", "redis", "uvloop", "asyncio", "orjson", "logging", "subprocess", "dataclasses")


def test_no_sigterm_is_lost_in_the_fork_window():
    assert _fork_window(200) == "lost 0 of 200, strange 0 0\n"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_sigterm_is_lost_in_5000_fork_windows():
    assert _fork_window(5000) == "lost 0 of 5000, strange 0 0\n"


def test_a_closed_terminal_ends_the_supervisor():
    with Supervisor(domains=CALM, start=False) as pfsup:
        pfsup.process, terminal = on_a_terminal(pfsup.start_command, environ=pfsup.environ)
        until(lambda: pfsup.is_ready)
        os.close(terminal)
        assert pfsup.wait_exit() == 0
        assert len(pfsup.marks("a", "drained")) == 1


def test_ctrl_c_at_the_terminal_drains_once_and_quietly():
    with Supervisor(domains={"t": "children:CountsTerms"}, config='[log]\nfile = "LOG"\n', start=False) as pfsup:
        pfsup.process, terminal = on_a_terminal(pfsup.start_command, environ=pfsup.environ)
        until(lambda: pfsup.is_ready)
        os.write(terminal, b"\x03")
        pfsup.wait_mark("t", "term")
        pfsup.open_gate("t", "go")
        assert pfsup.wait_exit() == 0
        os.close(terminal)
        assert len(pfsup.marks("t", "term")) == 1
        assert "Traceback" not in (pfsup.directory / "LOG").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace")
def test_as_pid_1_orphans_are_reaped_quietly_and_a_stop_works():
    with Supervisor(domains={"o": "children:LeavesOrphans"}, start=False) as pfsup:
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *pfsup.start_command]
        with pfsup.log_path.open("ab") as log:
            pfsup.process = subprocess.Popen(inside, stdin=subprocess.DEVNULL, stderr=log, env=pfsup.environ)
        until(lambda: pfsup.is_ready)
        until(lambda: pfsup.own()["strangers"] == 20)
        own, child = pfsup.own(), pfsup.child("o")
        assert (own["pid"], child["generation"], own["reaped"]) == (1, 1, 0)
        assert pfsup.stop() == 0
        assert pfsup.wait_exit() == 0


def test_a_full_disk_under_the_log_stops_nothing_and_is_counted():
    with Supervisor(domains=CALM, config='[log]\nfile = "/dev/full"\n') as pfsup:
        pfsup.wait_ready()
        assert pfsup.own()["log_errors"] > 0
        os.kill(pfsup.pid("a"), signal.SIGKILL)
        pfsup.wait_state("a", "ready", generation=2)
        assert "log_errors" in pfsup.cli("status").stdout
        assert pfsup.stop() == 0


def test_a_log_whose_reader_is_gone_stops_nothing_and_is_counted():
    with Supervisor(domains=CALM, start=False) as pfsup:
        reader, writer = os.pipe()
        os.close(reader)
        pfsup.launch(stderr=writer)
        os.close(writer)
        until(lambda: pfsup.is_ready)
        assert pfsup.own()["log_errors"] > 0
        pfsup.ask("restart", name="a")
        pfsup.wait_state("a", "ready", generation=2)


@pytest.mark.parametrize("how", ["signal", "command"])
def test_only_the_parent_speaks_to_systemd(how: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, Supervisor(domains=CALM, start=False) as pfsup:
        manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        manager.settimeout(HANG_S)
        manager.bind(os.fspath(pfsup.directory / "notify"))
        pfsup.environ |= {"NOTIFY_SOCKET": str(pfsup.directory / "notify"), "WATCHDOG_USEC": "200000"}
        pfsup.start()
        told = [_datagram(manager, pfsup.parent_pid) for _ in range(3)]
        assert told[0] == f"READY=1\nMAINPID={pfsup.parent_pid}"
        assert told[1:] == ["WATCHDOG=1", "WATCHDOG=1"]
        with pfsup.connect() as sock:
            if how == "signal":
                pfsup.signal(signal.SIGTERM)
            else:
                sock.sendall(encode({"v": 1, "verb": "stop"}))
            while (text := _datagram(manager, pfsup.parent_pid)) == "WATCHDOG=1":
                pass
        assert text == "STOPPING=1"
        pfsup.wait_exit()
        assert "stopping; at most" in pfsup.log()


def test_a_module_that_starts_a_thread_at_import_is_refused_by_name():
    with Supervisor(domains=CALM, start=False) as pfsup:
        text = pfsup.config_path.read_text().replace("children:Calm", "support.badmodule:Calm")
        pfsup.config_path.write_text(text.replace("preload = false", "preload = true"))
        done = subprocess.run(
            [*pfsup.command("start"), "--app-dir", str(SUPPORT.parent)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env=pfsup.environ,
            check=False,
        )
        assert done.returncode == 78
        assert "support.badmodule starts a thread when it is imported (telemetry)" in done.stderr


def test_a_kind_that_cannot_be_imported_is_a_configuration_error():
    with Supervisor(domains=CALM, start=False) as pfsup:
        text = pfsup.config_path.read_text().replace("children:Calm", "no_such_module:Calm")
        pfsup.config_path.write_text(text.replace("preload = false", "preload = true"))
        done = pfsup.cli("start")
        assert done.returncode == 78
        assert "cannot import no_such_module" in done.stderr


def test_start_method_exec_is_refused_clearly():
    with Supervisor(domains=CALM, start=False) as pfsup:
        pfsup.environ["PFSUP_SUPERVISOR__START_METHOD"] = "exec"
        done = pfsup.cli("start")
        assert done.returncode == 78
        assert "not available in this version" in done.stderr


def test_a_child_waits_for_the_end_of_an_orphan_of_its_name():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        lock = next(path for path in pfsup.socket_path.parent.iterdir() if path.suffix == ".child")
        pfsup.cli("disable", "a")
        pfsup.wait_state("a", "disabled")
        with lock.open() as orphan:
            fcntl.flock(orphan, fcntl.LOCK_EX)
            pfsup.cli("enable", "a")
            waiting = pfsup.wait_state("a", "waiting")
            assert waiting["waiting"] == f"another a (pid {os.getpid()}) is still running; waiting for its end"
        pfsup.wait_state("a", "ready", generation=2)


@pytest.mark.parametrize("command", [("probe", "live"), ("probe", "ready")])
def test_a_probe_imports_neither_settings_nor_command_line_nor_drivers(command: tuple[str, str]):
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        assert _imported(pfsup, *command).isdisjoint(HEAVY)


def test_status_imports_no_settings_library_and_no_driver():
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()  # a status that tells of less ends with 3
        assert _imported(pfsup, "status").isdisjoint({"pydantic", "psycopg", "redis", "uvloop", "asyncio"})


def test_the_running_parent_has_neither_a_loop_nor_a_connection():
    """Its descriptors are its own list, and none of them is a TCP socket."""
    with Supervisor(domains=CALM, supervisor={"preload": True}) as pfsup:
        pfsup.wait_ready()
        inodes = set(descriptors(pfsup.parent_pid))
        tcp = Path(f"/proc/{pfsup.parent_pid}/net/tcp").read_text().splitlines()[1:]
        assert inodes.isdisjoint(f"socket:[{line.split()[9]}]" for line in tcp)
        assert len(list(Path(f"/proc/{pfsup.parent_pid}/task").iterdir())) == 1


def _fork_window(times: int) -> str:
    command = [sys.executable, "-m", "support.forkwindow", str(times)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=SUPPORT.parent, check=True, timeout=300)
    return done.stdout


def _datagram(manager: socket.socket, sender: int) -> str:
    text, ancillary, _flags, _address = manager.recvmsg(4096, 1024)
    assert int.from_bytes(ancillary[0][2][:4], sys.byteorder) == sender
    return text.decode()


def _imported(pfsup: Supervisor, *words: str) -> set[str]:
    command = pfsup.command(*words)
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, capture_output=True, text=True, env=pfsup.environ, timeout=HANG_S, check=True)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
