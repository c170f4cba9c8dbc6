"""What a supervisor with eight children takes, after work: fork from a frozen parent shares the imports."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.database import Database
from support.outbox import stage
from support.supervisor import Supervisor
from support.waiting import until

LIMIT_MIB = 135


def pss_mib(pid: int) -> float:
    """The process's proportional share of memory: a page that n processes share counts as 1/n of one."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) / 1024


@pytest.mark.skipif("COVERAGE_RUN" in os.environ, reason="a traced process keeps what it counted: 155 MiB")
def test_parent_and_eight_children_stay_within_their_memory_after_work(database: Database) -> None:
    """dispatch, housekeeping and envelope with their pools and loops, and five domains."""
    config = f'[database]\nurl = "{database.run_url}"\n[redis]\nurl = "{database.redis_url}"\n'
    domains = {f"d{n}": "children:Calm" for n in range(5)}
    with Supervisor(main=True, config=config, domains=domains) as supervisor:
        supervisor.wait_ready()
        stage(database, count=2000)
        until(lambda: supervisor.child("dispatch")["figures"].get("sent") == 2000)
        pids = [supervisor.parent_pid, *(child["pid"] for child in supervisor.status()["children"])]
        assert len(pids) == 9
        assert sum(pss_mib(pid) for pid in pids) <= LIMIT_MIB
