"""One key of the settings: its default, and beside it what it accepts and the sentence that says what it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a key accepts beyond its type, and the one sentence that says what it is for."""

    says: str
    at_least: float | None = None
    at_most: float | None = None
    pattern: str = ""
    wanted: str = ""  # the pattern in words
    example: str = ""  # shown in pfsup.example.toml in place of the default
    secret: bool = False  # never printed
    path: bool = False  # a relative one is seen from the file it is written in


def setting(  # the limits of one key, side by side
    default: T,
    says: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    pattern: str = "",
    wanted: str = "",
    example: str = "",
    secret: bool = False,
    path: bool = False,
) -> T:
    """A key with its default and what is said and demanded of it. To the type checker it is the default."""
    rule = Rule(
        says=says,
        at_least=at_least,
        at_most=at_most,
        pattern=pattern,
        wanted=wanted,
        example=example,
        secret=secret,
        path=path,
    )
    return field(default=default, repr=not secret, metadata={"rule": rule})


def section(make: Callable[[], T], says: str, *, example: str = "") -> T:
    """A table of keys, or a map of named tables (`example` is then the name the example file uses)."""
    return field(default_factory=make, metadata={"rule": Rule(says=says, example=example)})


def rule_of(metadata: Any) -> Rule:
    """The rule in a dataclass field's metadata."""
    return cast("Rule", metadata["rule"])
