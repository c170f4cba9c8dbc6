"""Whether a database's schema is the one that this program speaks."""

from __future__ import annotations

from ...config.errors import SchemaError
from .migrate import LATEST


def check_version(found: int | None, schema: str) -> None:
    """SchemaError with the next step, unless the schema has the version that this program speaks."""
    if (found or 0) < LATEST:
        raise SchemaError(f"schema {schema} has version {found or 0}, wanted {LATEST}, run: pfsup migrate")
    if found != LATEST:
        raise SchemaError(f"schema {schema} has version {found}, this pfsup speaks {LATEST}; install the newer pfsup")
