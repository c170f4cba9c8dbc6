"""scripts/bench runs each measurement on servers of its own, with numbers too small to mean anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "latency": ("--seconds", "0.5", "--rate", "100"),
    "drain": ("--rows", "1000"),
    "stage": ("--rows", "50", "--seconds", "1"),
    "recovery": ("--rows", "100", "--seconds", "0.5"),
    "discovery": ("--rows", "2000", "--stuck", "200", "--asleep", "300"),
}
SLOW = {"recovery": pytest.mark.long}  # it starts every domain four times


def bench(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/bench's program in this environment (the script itself only builds one)."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    return subprocess.run(
        [sys.executable, "-m", "benchlib", *argv], capture_output=True, text=True, check=False, timeout=170, env=environ
    )


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in SMALL])
def test_bench_prints_environment_runs_pairs_and_a_verdict(name: str):
    done = bench(name, *SMALL[name], "--repeat", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema"], told["bench"], told["repetitions"]) == (1, name, 1)
    assert told["environment"]["fsync"] == "on"
    assert {"cores", "kernel", "python", "postgresql", "psycopg", "fsync_us"} <= told["environment"].keys()
    assert [run["side"] for run in told["runs"]] == ["ours", "bare", "bare", "ours"]
    assert told["verdicts"]
    for verdict in told["verdicts"]:
        assert len(verdict["pairs"]) == 2
        assert verdict["spread"][0] <= verdict["ratio"] <= verdict["spread"][1]
        assert isinstance(verdict["met"], bool)


@pytest.mark.parametrize("name", SMALL)
def test_show_bare_prints_code_and_measures_nothing(name: str):
    done = bench(name, "--show-bare")
    assert done.returncode == 0
    compile(done.stdout, "bare", "exec")
