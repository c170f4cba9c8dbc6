"""Closed descriptors, full disks behind the answer, terminals and pipes that nobody reads: what surrounds a command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from support.supervisor import HANG_S, Supervisor
from support.waiting import until

CALM = {"a": "children:Calm"}


def _run(
    command: list[str], environ: dict[str, str], *, stdout: int | IO[str] = subprocess.PIPE, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command's end; standard error is caught."""
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=HANG_S, env=environ, cwd=cwd, check=False
    )


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_start_with_closed_standard_descriptors_works_and_gives_their_numbers_to_nothing(closed: str):
    with Supervisor(domains={**CALM, "s": "children:ShowsItself"}, start=False) as pfsup:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *pfsup.start_command]
        pfsup.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=pfsup.environ)
        until(lambda: pfsup.is_ready)
        standard = [str(Path(f"/proc/{pfsup.parent_pid}/fd/{number}").readlink()) for number in range(3)]
        assert "/dev/null" in standard
        assert not [target for target in standard if target.startswith(("anon_inode:", "socket:"))]
        assert pfsup.marks("s", "fds")[0] == "/dev/null"
        assert pfsup.stop() == 0


@pytest.mark.parametrize("words", ["status", "status --json", "config", "config --json", "status --help", "--version"])
def test_an_answer_that_cannot_be_written_is_one_line_and_an_exit_code(words: str):
    with Supervisor(domains=CALM) as pfsup:
        command = pfsup.command(*words.split())
        if words.startswith("-") or words.endswith("--help"):
            command = command[:-2]  # without -c FILE
        with Path("/dev/full").open("w") as full:
            done = _run(command, pfsup.environ, stdout=full)
        assert done.stderr == "pfsup: cannot finish: No space left on device\n"
        assert done.returncode == 1


@pytest.mark.parametrize("words", ["status", "status --json", "probe ready", "config --json"])
def test_a_command_without_standard_output_answers_by_its_exit_code(words: str):
    with Supervisor(domains=CALM) as pfsup:
        pfsup.wait_ready()
        done = _run(["sh", "-c", 'exec "$@" >&-', "sh", *pfsup.command(*words.split())], pfsup.environ)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("words", "code"), [("probe live", 1), ("status", 69), ("stop", 69)])
def test_a_directory_that_was_removed_under_a_command_is_no_traceback(words: str, code: int, tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    environ = {**os.environ, "PFSUP_SUPERVISOR__RUNTIME_DIR": str(tmp_path)}
    script = Path(sys.executable).with_name("pfsup")
    command = ["sh", "-c", f'rmdir "{gone}" && exec "$@"', "sh", str(script), *words.split()]
    done = _run(command, environ, cwd=gone)
    assert done.stderr.count("\n") == 1
    assert done.returncode == code


def test_a_reader_that_has_seen_enough_is_told_nothing():
    with Supervisor(domains=CALM) as pfsup:
        reader, writer = os.pipe()
        os.close(reader)
        done = _run(pfsup.command("status"), pfsup.environ, stdout=writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, "")


def test_probe_explains_itself():
    with Supervisor(domains=CALM, start=False) as pfsup:
        done = _run([*pfsup.command("probe")[:-2], "--help"], pfsup.environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("usage: pfsup probe live|ready")


def test_a_fault_of_a_command_is_one_line_that_a_report_can_be_made_of():
    script = "from pfsup.supervisor.cli import main; main.pfsup.main = None; raise SystemExit(main.run([]))"
    done = _run([sys.executable, "-c", script], dict(os.environ))
    place = r"_run in main\.py:\d+"
    wanted = rf"pfsup: cannot finish: a fault of pfsup's own, TypeError at {place}; please report it\n"
    assert re.fullmatch(wanted, done.stderr)
    assert done.returncode == 70
