"""What pydantic found, in our words: path, wanted, got, hint. No secret and no unknown key's value is ever shown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from . import durations, fields
from .errors import Problem
from .layers import Path
from .values import Settings

TEXT_LIMIT = 60


def fault(path: Path, kind: str, value: Any, where: str) -> Problem:
    """One error of pydantic's (`kind` is its type) about the value at `path`."""
    key = fields.find(path)
    if key is None or kind == "extra_forbidden":
        return _unknown(path, where)
    return Problem(
        where=where, path=fields.dotted(*path), wanted=key.wanted, got=shown(value, key=key), hint=_hint(key, value)
    )


def _unknown(path: Path, where: str) -> Problem:
    known = fields.siblings(path)
    near = difflib.get_close_matches(path[-1], known, n=1)
    elsewhere = ", ".join(f"[{section}]" for section in _sections_with(path[-1]) if section != path[0])
    hints = [f"did you mean {near[0]}?"] if near else []
    hints += [f"{path[-1]} is a key of {elsewhere}"] if elsewhere else []
    hint = " ".join(hints) or "known here: " + ", ".join(known)
    wanted = "a known section" if len(path) == 1 else "a known key"
    return Problem(where=where, path=fields.dotted(*path), wanted=wanted, got="an unknown name", hint=hint)


def _sections_with(name: str) -> list[str]:
    tables = {
        section if key.named is None else f"{section}.NAME": key.named or key.table
        for section, key in fields.keys_of(Settings).items()
    }
    return [section for section, table in tables.items() if table and name in fields.keys_of(table)]


def _hint(key: fields.Key, value: Any) -> str:
    if key.table is not None or key.named is not None:
        return ""
    if key.choices and isinstance(value, str):
        near = difflib.get_close_matches(value, key.choices, n=1)
        return f'did you mean "{near[0]}"?' if near else ""
    if key.kind == fields.SECONDS:
        return _hint_of_duration(value)
    if key.kind in (bool, int) and isinstance(value, str):
        return "write it without quotes" if _bare(value) else ""
    return "write it in quotes" if key.kind is str and isinstance(value, int | float) else ""


def _hint_of_duration(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    bare = _bare(str(value).strip())
    return f'write the unit: "{str(value).strip()}s" is seconds' if bare else ""


def _bare(text: str) -> bool:
    return text in ("true", "false") or text.replace(".", "", 1).isdecimal()


def shown(value: Any, *, key: fields.Key | None) -> str:
    """The value as a problem may show it: whole when it is short and harmless, else only what it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not _hidden(key):
        return str(value)
    if isinstance(value, str) and not _hidden(key) and not _suspicious(value):
        return repr(value) if len(value) <= TEXT_LIMIT else f"{value[:TEXT_LIMIT]!r}… ({len(value)} characters)"
    return _in_words(value)


def _hidden(key: fields.Key | None) -> bool:
    return key is None or key.rule.secret or key.table is not None or key.named is not None


def _suspicious(text: str) -> bool:
    """Whether it could be an address or a password pasted under the wrong key."""
    return "://" in text or "@" in text or "passw" in text.lower()


def _in_words(value: Any) -> str:
    match value:
        case str():
            return f"a text of {len(value)} characters"
        case int() | float():
            return "a number"
        case Mapping():
            return "a table"
        case list():
            return "a list"
        case _:
            return "a date or time"


def told(key: fields.Key, value: Any) -> str:
    """A checked value as it would be written in TOML; a duration with its unit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.kind == fields.SECONDS:
        return f'"{durations.text(value)}"'
    if isinstance(value, str):
        return fields.quoted(value)
    return str(value)
