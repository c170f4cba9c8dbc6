"""`pfsup status`: what runs, in which state, and why not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ...config.errors import EXIT_DEGRADED, EXIT_OK
from ...shared.text import printable
from .address import control_path
from .client import ask
from .common import config_option, json_option, print_json

COLUMNS = ("NAME", "STATE", "PID", "GEN", "SINCE", "PHASE", "RESTARTS", "LAST EXIT", "WAITING FOR")


@click.command("status")
@config_option
@json_option
def command(config_path: str | None, as_json: bool) -> int:
    """Show the children. Exit 0 all ready, 3 something is not, 69 no supervisor runs."""
    reply = ask(control_path(config_path), "status")
    fields = {key: value for key, value in reply.items() if key not in ("ok", "v")}
    if as_json:
        print_json(fields)
    else:
        print("\n".join(text(fields)))
    return EXIT_OK if fields.get("supervisor", {}).get("ready") is True else EXIT_DEGRADED


def text(fields: dict[str, Any]) -> list[str]:
    """The status as lines: a head, then a table with one row a child."""
    rows = [COLUMNS, *(_row(child) for child in fields.get("children", []))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return [_head(fields.get("supervisor", {})), *table]


def _head(own: dict[str, Any]) -> str:
    faults = [f"{key} {own[key]}" for key in ("strange_fds", "strange_tasks", "log_errors") if own.get(key)]
    parts = [f"{own.get('name')} {own.get('version')}", f"pid {own.get('pid')}", str(own.get("state")), *faults]
    return printable(", ".join(parts))


def _row(child: dict[str, Any]) -> tuple[str, ...]:
    last_exit: dict[str, Any] = child.get("last_exit") or {}
    state = f"{child.get('state')}{' (override)' if child.get('override') else ''}"
    retry_s = child.get("retry_in_s")
    if retry_s is not None:
        state += f" {retry_s:.1f}s"
    cells: tuple[Any, ...] = (
        child.get("name"),
        state,
        child.get("pid") or "-",
        child.get("generation"),
        _clock(child.get("since_at")),
        child.get("phase") or "-",
        child.get("restarts"),
        last_exit.get("text", "-"),
        child.get("waiting") or "-",
    )
    return tuple(printable(str(cell)) for cell in cells)


def _clock(at: object) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S") if isinstance(at, int | float) and at else "-"
