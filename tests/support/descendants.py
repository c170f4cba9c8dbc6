"""The processes below one process, so that a test can say that none of them is left."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PRIVATE = re.compile(r"/tmp/pfsup-srv-[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, told from a later one with the same number by its start time in clock ticks."""

    pid: int
    started: str
    command: str

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        state = _stat(self.pid)
        return state is not None and state[0] != "Z" and state[19] == self.started


def descendants(pid: int) -> list[Process]:
    """Every process below `pid` now, children of children too."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (state := _stat(int(path.name))):
            children[int(state[1])].append(int(path.name))
    found, todo = list[Process](), [pid]
    while todo:
        below = children[todo.pop()]
        todo += below
        found += [Process(pid=one, started=state[19], command=_command(one)) for one in below if (state := _stat(one))]
    return found


def private_folders(processes: list[Process]) -> set[Path]:
    """The embedded servers' private folders that these processes were started with."""
    return {Path(found) for process in processes for found in PRIVATE.findall(process.command)}


def _stat(pid: int) -> list[str] | None:
    """The fields of proc(5) stat from the state on; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
