"""Plans of named statements: the text as it is loaded, prepared, as the role that runs it, custom and generic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pfsup.shared.db.connect import connect, limits_query
from psycopg import sql

from .database import Database

MODES = ("force_custom_plan", "force_generic_plan")


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a plan. `table` and `index` are "" where it reads none; `text` is all that the server said of it."""

    kind: str
    table: str
    index: str
    text: Mapping[str, Any]


def plan(database: Database, query: bytes, params: Mapping[str, Any], *, mode: str) -> list[Step]:
    """The plan of a statement of recovery, prepared, under `plan_cache_mode = mode`; nothing is run."""
    with connect(database.settings().database, application_name="test:plan", url=database.run_url) as conn:
        conn.execute(sql.SQL("SET plan_cache_mode = {}").format(sql.Literal(mode)))
        names: list[str] = []
        conn.execute(b"PREPARE planned AS " + _numbered(query, names))
        given = sql.SQL(", ").join(sql.Literal(params[name]) for name in names)
        asked = sql.SQL("EXPLAIN (FORMAT JSON, COSTS ON) EXECUTE planned ({})").format(given)
        row = conn.execute(asked).fetchone()
    assert row is not None
    return list(_steps(row[0][0]["Plan"]))


def gone_over(database: Database, query: bytes, params: Mapping[str, Any]) -> int:
    """Run a statement as a recovery domain does, which only seeks: how many rows the busiest node of its plan read."""
    settings = database.settings().database
    with connect(settings, application_name="test:plan", url=database.run_url) as conn:
        conn.execute(limits_query(settings, seeks=True))
        row = conn.execute(b"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + query, params).fetchone()
    assert row is not None
    return max(round(_read(step.text)) for step in _steps(row[0][0]["Plan"]))


def _read(node: Mapping[str, Any]) -> float:
    dropped = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return node["Actual Loops"] * (node["Actual Rows"] + dropped)


def explained(database: Database, name: str, params: tuple[Any, ...]) -> str:
    """The plans of the statements inside a function, as auto_explain sees them."""
    said: list[str] = []
    with database.superuser() as conn:
        conn.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
        conn.execute("LOAD 'auto_explain'")
        conn.execute("SET auto_explain.log_min_duration = 0")
        conn.execute("SET auto_explain.log_nested_statements = on")
        conn.execute("SET client_min_messages = log")
        marks = ", ".join(["%s"] * len(params))
        conn.execute(f"SELECT * FROM pfsup.{name}({marks})".encode(), params)
    return "\n".join(said)


def sequential(steps: list[Step], *tables: str) -> list[str]:
    """Which of these tables the plan reads from end to end."""
    return [step.table for step in steps if step.kind == "Seq Scan" and step.table in tables]


def indexes(steps: list[Step], table: str) -> set[str]:
    """The indexes through which the plan reads a table."""
    return {step.index for step in steps if step.table == table and step.index}


def _numbered(query: bytes, names: list[str]) -> bytes:
    """The statement with $1, $2, … for its named parameters, whose names go to `names`."""

    def place(found: re.Match[bytes]) -> bytes:
        name = found[1].decode()
        if name not in names:
            names.append(name)
        return b"$%d" % (names.index(name) + 1)

    return re.sub(rb"%\((\w+)\)s", place, query).replace(b"%%", b"%")


def _steps(node: Mapping[str, Any]) -> Iterator[Step]:
    text = {key: value for key, value in node.items() if key != "Plans"}
    yield Step(node["Node Type"], node.get("Relation Name", ""), node.get("Index Name", ""), text)
    for below in node.get("Plans", ()):
        yield from _steps(below)
