"""One place where values are written: the file, the environment, the flags. Each knows where its values stand."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, cast

from . import fields, locate

Path = tuple[str, ...]
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values as a tree, and for each leaf's path the place that a person would look at."""

    values: Tree = field(default_factory=dict[str, Any])
    origins: dict[Path, str] = field(default_factory=dict[Path, str])

    def put(self, path: Path, value: Any, origin: str) -> None:
        """Write one value. What stands in the way and is no table is replaced."""
        tree = self.values
        for part in path[:-1]:
            below = tree.get(part)
            if not isinstance(below, dict):
                below = tree[part] = {}
            tree = cast("Tree", below)
        tree[path[-1]] = value
        self.origins[path] = origin

    def without(self, paths: set[Path]) -> Layer:
        """The same layer with these values and all below them left out."""
        copy = Layer(values=deepcopy(self.values), origins=dict(self.origins))
        for path in paths:
            _drop(copy.values, path)
            for origin in [p for p in copy.origins if p[: len(path)] == path]:
                del copy.origins[origin]
        return copy


def _drop(tree: Tree, path: Path) -> None:
    for part in path[:-1]:
        below = tree.get(part)
        if not isinstance(below, dict):
            return
        tree = cast("Tree", below)
    tree.pop(path[-1], None)


def origin_of(path: Path, layers: tuple[Layer, ...]) -> str:
    """Where the value at `path` is written; "default" when nowhere. The layers go from the highest to the lowest."""
    return next((layer.origins[path] for layer in layers if path in layer.origins), "default")


def place_of(path: Path, layers: tuple[Layer, ...]) -> str:
    """Where to look for what is wrong at `path`: there, else below it, else at the table around it; "" when nowhere."""
    for layer in layers:
        below = (origin for p, origin in layer.origins.items() if p[: len(path)] == path)
        above = (layer.origins[path[:size]] for size in range(len(path), 0, -1) if path[:size] in layer.origins)
        found = next(below, None) or next(above, None)
        if found:
            return found
    return ""


def from_file(path: FilePath) -> Layer:
    """The file's values with the lines they stand on. Raises ConfigError when it cannot be read or is not TOML."""
    text = locate.read_text(path)
    values = locate.parse(text, path)
    base = path.absolute().parent
    for leaf, value in _leaves(values):
        key = fields.find(leaf)
        if key is not None and key.rule.path and isinstance(value, str):
            _replace(values, leaf, locate.absolute(value, base))
    return Layer(values=values, origins={p: f"{path}:{line}" for p, line in lines_of(text).items()})


def _replace(tree: Tree, path: Path, value: str) -> None:
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def _leaves(tree: Mapping[str, Any], at: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(cast("Tree", value), (*at, name))
        else:
            yield (*at, name), value


_CLOSING = re.compile(r"""]|'{3}|"{3}""")


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, on which each key of a valid TOML document is written.

    tomllib keeps no positions. A statement of TOML ends with a line, so lines are added up until tomllib takes them.
    """
    found: dict[Path, int] = {}
    header: Path = ()
    statement, first = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        goes_on = bool(statement)
        statement, first = (statement + "\n" + line, first) if goes_on else (line, number)
        if goes_on and not _CLOSING.search(line):
            continue  # a long list would be parsed once a line otherwise
        try:
            tree = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        if statement.lstrip().startswith("["):
            header = next((path for path, _ in _leaves(tree)), ())
            found.setdefault(header, first)
        else:
            found.update({(*header, *path): first for path, _ in _leaves(tree)})
        statement = ""
    return found
