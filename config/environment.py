"""Settings from environment variables: `PFSUP_SECTION__KEY`, `PFSUP_DISPATCH__POOL__MAX`, `PFSUP_ACTORS__NAME__LEASE`.

Sections and keys are read without regard to case. NAME is looked up among the file's names: the exact name first, then
the one that is equal in capitals with every character but letters, digits and _ written as _ (`send-mail` is
`SEND_MAIL`). Where the file has none, a NAME all in capitals becomes lower case and any other is taken as written.
Values are texts, numbers and true/false without quotes; durations have their unit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from . import fields, locate
from .errors import Problem
from .layers import Layer, Path, Tree
from .values import Settings

PREFIX = "PFSUP_"
# Read by other parts of pfsup; they are no settings.
OTHER_VARIABLES = frozenset(
    {
        "PFSUP_CONFIG",
        "PFSUP_PG_BIN",
        "PFSUP_PYTHON",
        "PFSUP_REDIS_SERVER",
        "PFSUP_REQUIRE",
        "PFSUP_TEST_WORKERS",
        "PFSUP_VENV",
    }
)
# Kubernetes puts these into every container of a namespace in which a service is called pfsup or pfsup-…
# (Kubernetes manual, "Discovering services"). They must not keep a supervisor from starting.
_SERVICE_LINK = re.compile(
    r"PFSUP_(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


def from_environment(environ: Mapping[str, str], *, names: Mapping[str, Any]) -> tuple[Layer, list[Problem]]:
    """The settings in `environ`, and a problem for every PFSUP_ variable that is none. `names` is the file's tree."""
    layer, problems = Layer(), list[Problem]()
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or _is_service_link(variable):
            continue
        path = _path_of(variable, names)
        if isinstance(path, Problem):
            problems.append(path)
        elif _has_room(names, path):
            layer.put(path, typed(fields.find(path), environ[variable]), variable)
    return layer, problems


def _is_service_link(variable: str) -> bool:
    return "__" not in variable and _SERVICE_LINK.fullmatch(variable) is not None


def _has_room(names: Mapping[str, Any], path: Path) -> bool:
    """Whether the file has tables, or nothing, on the way to `path`; its own fault there is told as such."""
    tree: Any = names
    for part in path[:-1]:
        if not isinstance(tree, dict):
            return False
        tree = cast("Tree", tree).get(part, {})
    return isinstance(tree, dict)


def typed(key: fields.Key | None, text: str) -> Any:
    """The text as the key's type where it can be read as that; else the text itself, to be refused with the others."""
    if key is None:
        return text
    if key.kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if key.kind is int and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return locate.absolute(text) if key.rule.path else text


def _path_of(variable: str, names: Mapping[str, Any]) -> Path | Problem:
    """The key that the variable sets, or what is wrong with its name."""
    section, *below = variable.removeprefix(PREFIX).split("__")
    key = fields.find((section.lower(),))
    if key is not None and key.named is not None:
        return _path_below(variable, section.lower(), below, names)
    path = (section.lower(), *(part.lower() for part in below))
    return path if _is_leaf(path) else _unknown(variable, names)


def _path_below(variable: str, section: str, parts: list[str], names: Mapping[str, Any]) -> Path | Problem:
    """The path in a map of named tables. The name may itself hold `__`, so the key is read from the end."""
    for size in (2, 1):
        ending = tuple(part.lower() for part in parts[-size:])
        if len(parts) > size and _is_leaf((section, "x", *ending)):
            name = _name("__".join(parts[:-size]), names.get(section))
            return (section, name, *ending) if isinstance(name, str) else _ambiguous(variable, section, name)
    return _unknown(variable, names)


def _ambiguous(variable: str, section: str, names: list[str]) -> Problem:
    hint = "these names are the same in capitals; set this key in the file"
    return Problem(where=variable, path=section, wanted="one name", got=", ".join(map(repr, names)), hint=hint)


def _is_leaf(path: Path) -> bool:
    key = fields.find(path)
    return key is not None and key.table is None and key.named is None


def _name(written: str, entries: Any) -> str | list[str]:
    known = list(cast("Tree", entries)) if isinstance(entries, dict) else []
    if written in known:
        return written
    same = [name for name in known if _in_capitals(name) == written]
    if len(same) > 1:
        return same
    return same[0] if same else (written.lower() if written == written.upper() else written)


def _in_capitals(name: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", name.upper())


def _unknown(variable: str, names: Mapping[str, Any]) -> Problem:
    near = difflib.get_close_matches(variable, _variables(variable, names), n=1, cutoff=0.7)
    hint = (
        f"did you mean {near[0]}?" if near else "`pfsup config` lists every key; unset the variable if it is not ours"
    )
    return Problem(where=variable, wanted="a setting's variable, PFSUP_SECTION__KEY", got="an unknown name", hint=hint)


def _variables(variable: str, names: Mapping[str, Any]) -> Iterator[str]:
    """Every variable's name there is; in maps with the name that `variable` or the file has."""
    parts = variable.removeprefix(PREFIX).split("__")
    for section, key in fields.keys_of(Settings).items():
        entries = names.get(section)
        known = [_in_capitals(name) for name in cast("Tree", entries)] if isinstance(entries, dict) else []
        for name in [*known, *parts[1:2]] if key.named is not None else [""]:
            yield from _below(PREFIX + section.upper() + (f"__{name}" if name else ""), key.named or key.table)


def _below(start: str, table: type[Any] | None) -> Iterator[str]:
    for name, key in fields.keys_of(table).items() if table else ():
        variable = f"{start}__{name.upper()}"
        if key.table is not None:
            yield from _below(variable, key.table)
        else:
            yield variable
