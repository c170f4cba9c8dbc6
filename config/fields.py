"""The tree of keys, read from the dataclasses: what there is at a path, and what it accepts, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from . import durations
from .setting import Rule, rule_of
from .values import Seconds, Settings

SECONDS = Seconds
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: `kind` is its annotation with nothing stripped, `table` the dataclass when it is a table of keys,
    `named` the dataclass when it is a map of named tables."""

    name: str
    kind: Any
    default: Any
    rule: Rule
    table: type[Any] | None = None
    named: type[Any] | None = None

    @property
    def low(self) -> float | int | None:
        """The least value, as a number of the key's own type."""
        return _same_type(self.kind, self.rule.at_least)

    @property
    def high(self) -> float | int | None:
        """The greatest value, as a number of the key's own type."""
        return _same_type(self.kind, self.rule.at_most)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that are allowed, when only some are."""
        return cast("tuple[str, ...]", get_args(self.kind)) if get_origin(self.kind) is Literal else ()

    @property
    def wanted(self) -> str:
        """What the key accepts, in words."""
        if self.table is not None or self.named is not None:
            return "a table of keys"
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        return self.rule.wanted or _limited(_type_in_words(self.kind), self)


def _type_in_words(kind: Any) -> str:
    if kind == SECONDS:
        return durations.WANTED
    return {bool: "true or false", int: "a whole number", str: "text"}[kind]


def _same_type(kind: Any, limit: float | None) -> float | int | None:
    return int(limit) if kind is int and limit is not None else limit


def _limited(words: str, key: Key) -> str:
    show = durations.text if key.kind == SECONDS else str
    low, high = key.low, key.high
    return (
        words
        + (f", at least {show(low)}" if low is not None else "")
        + (f", at most {show(high)}" if high is not None else "")
    )


@cache
def keys_of(table: type[Any]) -> dict[str, Key]:
    """The keys of one dataclass of settings, in their order."""
    hints = get_type_hints(table, include_extras=True)
    return {f.name: _key(f, hints[f.name]) for f in fields(table)}


def keys_in(values: Any) -> dict[str, Key]:
    """The keys of the dataclass that `values` is an instance of."""
    return keys_of(cast("type[Any]", type(values)))


def _key(field: Field[Any], kind: Any) -> Key:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    named = cast("type[Any]", get_args(kind)[1]) if get_origin(kind) is dict else None
    table = cast("type[Any]", kind) if is_dataclass(kind) else None
    return Key(name=field.name, kind=kind, default=default, rule=rule_of(field.metadata), table=table, named=named)


def find(path: tuple[str, ...], *, table: type[Any] = Settings) -> Key | None:
    """The key at `path` (("domains", "billing", "pool", "max")), or None where there is none."""
    key = keys_of(table).get(path[0]) if path else None
    if key is None or len(path) == 1:
        return key
    if key.named is not None:
        # A path that ends with the name means the named table itself.
        return _entry(key, path[1]) if len(path) == 2 else find(path[2:], table=key.named)
    return find(path[1:], table=key.table) if key.table is not None else None


def _entry(key: Key, name: str) -> Key:
    return Key(name=name, kind=key.named, default=None, rule=key.rule, table=key.named)


def dotted(*path: str) -> str:
    """The path as TOML writes it, quoted where a part is no bare key; safe for a terminal."""
    return ".".join(part if _BARE.fullmatch(part) else quoted(part) for part in path)


def quoted(text: str) -> str:
    """The text as a TOML string, with everything escaped that does not print."""
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in body) + '"'


def siblings(path: tuple[str, ...]) -> tuple[str, ...]:
    """The names that would be known at the level of `path`'s last part; none where any name may stand."""
    if len(path) == 1:
        return tuple(keys_of(Settings))
    parent = find(path[:-1])
    return tuple(keys_of(parent.table)) if parent is not None and parent.table is not None else ()


def leaves(values: Any, *, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key, Any]]:
    """Every single value below a dataclass of settings: its path, its key, the value."""
    for name, key in keys_in(values).items():
        value = getattr(values, name)
        if key.named is not None:
            for entry in value:
                yield from leaves(value[entry], at=(*at, name, entry))
        elif key.table is not None:
            yield from leaves(value, at=(*at, name))
        else:
            yield (*at, name), key, value
