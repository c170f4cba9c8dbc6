"""Runs a command as the leader of a session whose controlling terminal is ours to close or to type into."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

_LEAD = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def on_a_terminal(command: Sequence[str], *, environ: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the terminal's other end: write to type, close to hang up."""
    ours, theirs = os.openpty()
    launcher = [sys.executable, "-c", _LEAD, *command]
    process = subprocess.Popen(
        launcher, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ
    )
    os.close(theirs)
    return process, ours
