"""A program of the demo is told apart by what it says, ends with its owner, and cannot refuse to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pfsup.config.errors import PfsupError
from pfsup.supervisor.demo.programs import Program
from support.descendants import descendants
from support.waiting import until

SAYS_READY = "print('one'); print('ready to go', flush=True); input()"
IGNORES_TERM = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
OWNER = """
import sys
from pathlib import Path
from pfsup.supervisor.demo.programs import Program
program = Program("child", ["-c", "import signal; print('ready', flush=True); signal.pause()"],
                  log=Path(sys.argv[1]), speaks=True)
program.expect("ready", within_s=30)
print("ready", flush=True)
input()
"""


def test_expect_returns_the_lines_up_to_the_word(tmp_path: Path):
    with Program("speaker", ["-c", SAYS_READY], log=tmp_path / "log", speaks=True) as program:
        assert program.expect("ready", within_s=30) == ["one", "ready to go"]


def test_say_reaches_its_standard_input_and_the_exit_code_comes_back(tmp_path: Path):
    argv = ["-c", "import sys; sys.exit(int(input()))"]
    with Program("listener", argv, log=tmp_path / "log", speaks=True) as program:
        program.say("7")
        assert program.wait(30) == 7
        assert (program.exit_code, program.end()) == (7, 7)


def test_expect_of_a_program_that_ends_shows_the_end_of_its_log(tmp_path: Path):
    argv = ["-c", "import sys; sys.exit('it went wrong')"]
    with (
        Program("failing", argv, log=tmp_path / "log", speaks=True) as program,
        pytest.raises(PfsupError, match=r"failing ended before it said 'ready'\n  failing: it went wrong"),
    ):
        program.expect("ready", within_s=30)


def test_expect_gives_up_at_its_deadline(tmp_path: Path):
    with (
        Program("silent", ["-c", "input()"], log=tmp_path / "log", speaks=True) as program,
        pytest.raises(PfsupError, match=r"silent did not say 'ready' within 0\.1 s"),
    ):
        program.expect("ready", within_s=0.1)


def test_program_without_pipes_cannot_be_talked_to(tmp_path: Path):
    with (
        Program("mute", ["-c", "pass"], log=tmp_path / "log") as program,
        pytest.raises(PfsupError, match="started without pipes"),
    ):
        program.say("hello")


def test_program_that_ignores_sigterm_is_killed(tmp_path: Path):
    with Program("stubborn", ["-c", IGNORES_TERM], log=tmp_path / "log", speaks=True) as program:
        program.expect("ready", within_s=30)
        assert program.end(within_s=0.1) == -signal.SIGKILL


def test_program_ends_when_its_owner_is_killed(tmp_path: Path):
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        (program,) = descendants(owner.pid)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait(30)
    until(lambda: not program.alive, what="the program outlived its owner")
