"""Forks children by the parent's own code and signals each at once; prints how many signals were lost.

`python -m support.forkwindow TIMES`, in tests/. A program of its own, since the process that forks may have only one
thread.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

from pfsup.config.values import Settings
from pfsup.supervisor.parent.registry import Registry
from pfsup.supervisor.parent.spawn import fork
from pfsup.supervisor.parent.spec import Spec, Start

TOOK_IT = 3


def child(start: Start) -> int:
    """End with 3 once a SIGTERM was noted, with 4 when none was for 10 s."""
    for _ in range(1000):
        if start.early:
            return TOOK_IT
        select.select([], [], [], 0.01)
    return TOOK_IT + 1


def once(registry: Registry) -> bool:
    """True if a SIGTERM that was sent as early as can be was taken."""
    ours, theirs = socket.socketpair()
    spec = Spec(name="a", target="m:C", group="recovery")
    start = Start(spec=spec, settings=Settings(), boot_id="b", generation=1, link=theirs, lock=Path("unused"))
    for sock, what in ((ours, "ours"), (theirs, "theirs")):
        registry.own(sock.fileno(), what, close=sock.close)
    born = fork(start, ours, registry=registry, child_main=child)
    os.kill(born.pid, signal.SIGUSR1)  # asks for its stacks, which it cannot write yet: no reason to die
    os.kill(born.pid, signal.SIGTERM)
    result = os.waitid(os.P_PID, born.pid, os.WEXITED)
    for sock in (ours, theirs):
        registry.release(sock.fileno())
        sock.close()
    os.close(born.pidfd)
    return result is not None and (result.si_code, result.si_status) == (os.CLD_EXITED, TOOK_IT)


def _swallow(_number: int, _frame: FrameType | None) -> None:
    pass


def main(times: int) -> None:
    """Print how many signals were lost."""
    signal.signal(signal.SIGTERM, _swallow)  # the parent's own handler is what swallowed them
    registry = Registry.begin(log_fd=2)
    lost = times - sum(once(registry) for _ in range(times))
    sys.stdout.write(f"lost {lost} of {times}, strange {registry.strange_fds} {registry.strange_tasks}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
