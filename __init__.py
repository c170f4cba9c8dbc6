"""pfsup: committed work from PostgreSQL to Redis within milliseconds, and a settled end for what got stuck.

The names below are the public Python interface. They are imported on first use: `import pfsup` loads no driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config.errors import ConfigError, PfsupError, SchemaError

_HOMES = {
    "ConfigError": "config.errors",
    "PfsupError": "config.errors",
    "SchemaError": "config.errors",
}

__all__ = ["ConfigError", "PfsupError", "SchemaError"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pfsup' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
