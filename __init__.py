"""pfsup: committed work from PostgreSQL to Redis within milliseconds, and a settled end for what got stuck.

The names below are the public Python interface. They are imported on first use: `import pfsup` loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config.errors import ConfigError, PfsupError, SchemaError
    from .shared.outbox import Staged, stage
    from .shared.work import work
    from .shared.worker.outcomes import Busy, Late, Reject, Retry, Snooze, Unknown
    from .shared.worker.task import Task
    from .shared.worker.worker import Worker

_HOMES = {
    "Busy": "shared.worker.outcomes",
    "ConfigError": "config.errors",
    "Late": "shared.worker.outcomes",
    "PfsupError": "config.errors",
    "Reject": "shared.worker.outcomes",
    "Retry": "shared.worker.outcomes",
    "SchemaError": "config.errors",
    "Snooze": "shared.worker.outcomes",
    "Staged": "shared.outbox",
    "Task": "shared.worker.task",
    "Unknown": "shared.worker.outcomes",
    "Worker": "shared.worker.worker",
    "stage": "shared.outbox",
    "work": "shared.work",
}

__all__ = [
    "Busy",
    "ConfigError",
    "Late",
    "PfsupError",
    "Reject",
    "Retry",
    "SchemaError",
    "Snooze",
    "Staged",
    "Task",
    "Unknown",
    "Worker",
    "stage",
    "work",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pfsup' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
