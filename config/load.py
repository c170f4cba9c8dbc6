"""The settings, loaded and checked whole, each with its origin. A flag beats the environment, and that the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from . import environment, fields, layers, locate, models, relations
from .errors import ConfigError, Problem
from .faults import fault
from .layers import Layer
from .values import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings that hold together. `origins` tells each key's: "default", "FILE:LINE", a variable's name, or the flag.

    `path` is the file that was read, or None.
    """

    settings: Settings
    origins: Mapping[str, str]
    path: Path | None


def load(
    path: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, str]] | None = None,
) -> Loaded:
    """Load and check everything that can be known without a server.

    `path` is the file, else the default search (`locate.find_file`); `environ` the environment, else the process's;
    `flags` maps a key ("supervisor.name") to its text and the flag it came from. Raises ConfigError with every problem.
    """
    environ = os.environ if environ is None else environ
    file = locate.find_file(path, environ)
    from_file = layers.from_file(file) if file else Layer()
    from_environ, problems = environment.from_environment(environ, names=from_file.values)
    written = (_from_flags(flags or {}), from_environ, from_file)
    settings, found, refused = _checked(written)
    origins = {fields.dotted(*p): layers.origin_of(p, written) for p, _, _ in fields.leaves(settings)}
    problems += found + _unfit(settings, origins, refused, written)
    if problems:
        raise ConfigError(sorted(problems, key=_line))
    return Loaded(settings=settings, origins=origins, path=file)


def _line(problem: Problem) -> int:
    """The line in the file; what is not in the file comes first."""
    _, colon, line = problem.where.rpartition(":")
    return int(line) if colon and line.isdecimal() else 0


def _from_flags(flags: Mapping[str, tuple[str, str]]) -> Layer:
    layer = Layer()
    for dotted, (text, flag) in flags.items():
        path = tuple(dotted.split("."))
        key = fields.find(path)
        layer.put(path, environment.typed(key, text) if key else text, f"flag {flag}")
    return layer


def _checked(written: tuple[Layer, ...]) -> tuple[Settings, list[Problem], set[str]]:
    """The settings without what was refused, the problems, and the refused keys."""
    problems: list[Problem] = []
    refused: set[layers.Path] = set()
    while True:
        try:
            return models.checked(written), problems, {fields.dotted(*path) for path in refused}
        except ValidationError as error:
            errors = error.errors(include_url=False)
        # What was refused is taken out and the rest looked at again, so that the relations are told as well.
        paths = {tuple(str(part) for part in e["loc"]) for e in errors}
        for e in errors:
            at = tuple(str(part) for part in e["loc"])
            problems.append(fault(at, e["type"], e["input"], layers.place_of(at, written)))
        refused |= paths
        written = tuple(layer.without(paths) for layer in written)


def _unfit(
    settings: Settings, origins: Mapping[str, str], refused: set[str], written: tuple[Layer, ...]
) -> list[Problem]:
    def given(path: str) -> bool:
        return origins.get(path, "default") != "default"

    return [
        Problem(where=_where(f.paths, written), path=f.paths[0], wanted=f.wanted, got=f.got, hint=f.hint)
        for rule in relations.RULES
        for f in rule(settings, given)
        if not any(_is_about(path, refused) for path in f.paths)
    ]


def _is_about(path: str, refused: set[str]) -> bool:
    """Whether the key, or the table it lies in, was refused."""
    return any(path == other or path.startswith(f"{other}.") for other in refused)


def _where(paths: tuple[str, ...], written: tuple[Layer, ...]) -> str:
    """The first place that a person wrote, of the keys that do not fit together; else the table of the first."""
    given = {fields.dotted(*path): origin for layer in reversed(written) for path, origin in layer.origins.items()}
    below = (origin for path in paths for key, origin in given.items() if key == path or key.startswith(f"{path}."))
    above = (given[table] for path in paths[:1] for table in _tables(path) if table in given)
    return next(below, None) or next(above, "")


def _tables(path: str) -> list[str]:
    """`a.b.c` → `a.b`, `a`."""
    parts = path.split(".")
    return [".".join(parts[:size]) for size in range(len(parts) - 1, 0, -1)]
