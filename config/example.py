"""`python -m pfsup.config.example` prints pfsup.example.toml; with --table, README's configuration table.

Both are made from values.py, so that a key, its limits and its sentence are written once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from . import fields
from .faults import told
from .values import KINDS, Domain, Settings

_HEAD = """\
# Every key of pfsup. A line such as #schema = "pfsup" shows the default; take the # away to change it.
# Durations have a unit: ms, s, m, h, d. Every key is also an environment variable: [dispatch] scan_interval is
# PFSUP_DISPATCH__SCAN_INTERVAL, [actors.send_email] lease is PFSUP_ACTORS__SEND_EMAIL__LEASE; it beats the file.
# `pfsup config` shows each value and where it came from, `pfsup check` what does not fit.
"""


def example() -> str:
    """The example file: what must be set is set, all else is there as a comment."""
    return "\n".join([_HEAD, *(_section(name, key) for name, key in fields.keys_of(Settings).items())])


def _section(name: str, key: fields.Key) -> str:
    if key.named is not None:
        lines = [f"# {key.rule.says}", f"#[{fields.dotted(name, key.rule.example)}]", *_keys(key.named(), ())]
    else:
        lines = [f"# {key.rule.says}", f"[{name}]", *_keys(key.default, (name,))]
    return "\n".join(lines) + "\n"


def _keys(values: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name, key in fields.keys_in(values).items():
        value = getattr(values, name)
        yield f"# {_sentence(values, key)}"
        if key.table is not None:
            inside = ", ".join(
                f"{k} = {told(below, getattr(value, k))}" for k, below in fields.keys_of(key.table).items()
            )
            yield f"#{name} = {{ {inside} }}"
        else:
            mark = "" if (*path, name) == ("database", "url") else "#"
            yield f"{mark}{name} = {told(key, key.rule.example or value)}"


def _sentence(values: Any, key: fields.Key) -> str:
    return f"{key.rule.says}{_by_kind(values, key)}{_limits(key)}"


def _by_kind(values: Any, key: fields.Key) -> str:
    """The defaults that are other ones in some kinds of domains; nothing for any other key."""
    if not isinstance(values, Domain):
        return ""
    own = {kind: defaults[key.name] for kind, defaults in KINDS.items() if key.name in defaults}
    parts = [f"{told(key, value).strip(chr(34))} in {kind}" for kind, value in own.items() if value != key.default]
    return f" By default {', '.join(parts)}." if parts else ""


def _limits(key: fields.Key) -> str:
    """The choices or limits in brackets; nothing where the type says it all."""
    if key.choices:
        return f" ({' | '.join(key.choices)})"
    low, high = (told(key, limit).strip('"') if limit is not None else "" for limit in (key.low, key.high))
    match (low, high):
        case ("", ""):
            return ""
        case (_, ""):
            return f" (from {low})"
        case _:
            return f" ({low} to {high})"


def table() -> str:
    """README's configuration table, in Markdown."""
    rows = ["| key | default | what it does |", "|---|---|---|"]
    for name, key in fields.keys_of(Settings).items():
        at = f"{name}.NAME" if key.named is not None else name
        rows += _rows(at, key.named() if key.named is not None else key.default)
    return "\n".join(rows) + "\n"


def _rows(at: str, values: Any) -> Iterator[str]:
    for name, key in fields.keys_in(values).items():
        value = getattr(values, name)
        if key.table is not None:
            yield from _rows(f"{at}.{name}", value)
        else:
            says = _sentence(values, key).replace("|", "\\|")
            yield f"| `{at}.{name}` | `{told(key, value)}` | {says} |"


if __name__ == "__main__":
    sys.stdout.write(table() if "--table" in sys.argv[1:] else example())
