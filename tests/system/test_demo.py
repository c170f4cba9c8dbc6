"""`pfsup demo` keeps its word on real servers, says so in its last line, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.descendants import Process, descendants, private_folders
from support.waiting import until

pytestmark = pytest.mark.timeout(120)
NONE = ("lost", "twice", "uncommitted", "unsettled", "repeated_calls", "open", "hollow", "misplaced")
STARTED = " s of "  # in the first line about the running shop


@contextmanager
def demo(*options: str) -> Generator[subprocess.Popen[str]]:
    """A demo that plays; ended with all that it started."""
    argv = [sys.executable, "-m", "pfsup", "demo", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # SIGKILL would leave its folder to the next start
                process.wait(60)


def read_until_open(process: subprocess.Popen[str]) -> list[str]:
    """Lines up to the first about the running shop."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if STARTED in line:
            return lines
    raise AssertionError(f"the demo ended before its shop was open: {lines} {process.communicate()[1]}")


def below(process: subprocess.Popen[str]) -> list[Process]:
    """What the demo started: servers, pfsup with its children, workers, the shop."""
    found = descendants(process.pid)
    said = " ".join(one.command for one in found)
    assert all(
        word in said for word in ("postgres", "valkey", "pfsup start", "demo.worker", "demo.producer", "demo.provider")
    ), said
    return found


def assert_nothing_left(processes: list[Process]) -> None:
    """None of the processes runs, and their private folders are gone."""
    folders = private_folders(processes)
    assert folders
    assert [one.command for one in processes if one.alive] == []
    assert [folder for folder in folders if folder.exists()] == []


def test_demo_loses_nothing_says_so_and_leaves_nothing():
    with demo("--seconds", "3", "--rate", "60", "--json") as process:
        read_until_open(process)
        started = below(process)
        out, err = process.communicate(timeout=100)
    told = json.loads(out.splitlines()[-1])
    assert process.returncode == 0, (told, err)
    assert (told["schema"], told["ok"]) == (1, True)
    assert [told[name] for name in NONE] == [0] * len(NONE)
    assert told["committed"] > 0 < told["envelopes"]
    assert told["consumed"] + told["rejected"] + told["unknown"] + told["dead"] == told["envelopes"] == told["sent"]
    assert all(count > 0 for count in told["kills"].values()), "a worker died at every boundary"
    assert len(told["domains"]) == 5
    for wait in ("staged_to_sent", "sent_to_started"):
        figures = told["waits_ms"][wait]
        assert 0 <= figures["p50"] <= figures["p95"] <= figures["p99"] <= figures["max"]
    assert any(line.startswith("ok: lost 0, twice 0") for line in out.splitlines())
    assert err == ""
    assert_nothing_left(started)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGTERM, signal.SIGHUP))],
)
def test_interrupted_demo_leaves_nothing(number: signal.Signals):
    with demo("--seconds", "60", "--rate", "50") as process:
        read_until_open(process)
        started = below(process)
        process.send_signal(number)
        process.send_signal(number)  # an impatient second one changes nothing
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert_nothing_left(started)


def test_killed_demo_leaves_no_process():
    with demo("--seconds", "60", "--rate", "50") as process:
        read_until_open(process)
        started = below(process)
        process.kill()
        process.wait(30)
    until(lambda: not any(one.alive for one in started), what="processes of a killed demo are left")


def test_kept_folder_holds_configuration_and_logs(short_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(short_dir))
    with demo("--seconds", "0.5", "--rate", "20", "--workers", "1", "--keep") as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    (kept,) = short_dir.glob("pfsup-demo-*")
    assert f"kept: {kept}" in out
    names = {path.name for path in (kept / "demo").iterdir()}
    assert {"pfsup.toml", "pfsup.log", "worker-1.log", "shop.log"} <= names


def test_missing_server_programs_are_told_in_one_line():
    with demo("--pg-bin", "/nonexistent") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 69
    assert err.startswith("pfsup: cannot use --pg-bin")
    assert "Traceback" not in err
