"""Named SQL: `.sql` files whose statements begin with `-- name: x` and a line that promises what they do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files

from .schema_name import checked_schema

_HEADER = re.compile(r"^-- name: *([a-z][a-z0-9_]*) *$", re.MULTILINE)


class Queries(Mapping[str, bytes]):
    """The statements of one file by name, as bytes that psycopg takes; a missing name says which there are."""

    __slots__ = ("_by_name", "_source")

    def __init__(self, source: str, by_name: Mapping[str, bytes]) -> None:
        self._source = source
        self._by_name = dict(by_name)

    def __repr__(self) -> str:
        return f"<Queries {self._source}: {', '.join(self._by_name)}>"

    def __getitem__(self, name: str) -> bytes:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"no query {name!r} in {self._source}; there are {', '.join(self._by_name)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __or__(self, other: Queries) -> Queries:
        """The statements of both; the other's where a name stands in both."""
        return Queries(f"{self._source} and {other._source}", {**self._by_name, **other._by_name})

    def __len__(self) -> int:
        return len(self._by_name)


def load_queries(
    package: str, filename: str, *, schema: str, parts: Mapping[str, bytes] | None = None, **others: str
) -> Queries:
    """The named statements of `filename` in `package`, with `@schema@` replaced, and `@other@` for each other schema.

    `parts`: statements that several files share a part of; `@name@` stands for it.

    ConfigError for an unusable schema name;
    ValueError when the file holds text before the first header, a name twice, or a statement without its promise.
    """
    text = files(package).joinpath(filename).read_text(encoding="utf-8")
    for name, part in (parts or {}).items():
        text = text.replace(f"@{name}@", part.decode())
    for name, other in others.items():
        text = text.replace(f"@{name}@", checked_schema(other))
    return Queries(filename, parse_queries(text, filename=filename, schema=schema))


def parse_queries(text: str, *, filename: str, schema: str) -> dict[str, bytes]:
    """The statements in `text` by name (see `load_queries`)."""
    lead, *parts = _HEADER.split(text)
    if any(line and not line.startswith("--") for line in lead.splitlines()):
        raise ValueError(f"cannot read {filename}: there is SQL before the first '-- name:'")
    found: dict[str, bytes] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in found:
            raise ValueError(f"cannot read {filename}: {name} stands there twice")
        if not body.lstrip("\n").startswith("-- "):
            raise ValueError(f"cannot read {filename}: {name} has no line that promises what it does")
        found[name] = _statement(body).replace("@schema@", checked_schema(schema)).encode()
    return found


def _statement(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
