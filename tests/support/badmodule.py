"""Not to be preloaded: starts a thread and opens a descriptor when it is imported."""

from __future__ import annotations

import threading
from pathlib import Path

from support import children

threading.Thread(target=threading.Event().wait, name="telemetry", daemon=True).start()


class Calm(children.Calm):
    """Never started."""


kept = Path("/dev/null").open()  # noqa: SIM115 - stays open, that is the point
