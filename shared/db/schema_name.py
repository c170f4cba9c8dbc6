"""The one place where a schema's name becomes part of SQL text."""

from __future__ import annotations

import re

from ...config.errors import SchemaError
from ...config.values import SCHEMA_NAME

_NAME = re.compile(SCHEMA_NAME)


def checked_schema(schema: str) -> str:
    """Return the name if it can stand in SQL as it is; else SchemaError with the rule."""
    if _NAME.fullmatch(schema):
        return schema
    raise SchemaError(
        f"cannot use the schema name {schema[:80]!r}: wanted a lower-case letter or _, then a-z, 0-9 or _, at most 40"
        " characters in all, not beginning with pg_"
    )
