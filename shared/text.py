"""Foreign text made safe for a terminal, a log line or a column."""

from __future__ import annotations


def printable(text: str, *, limit: int = 500) -> str:
    """`text` on one line with every control and formatting character written as an escape, cut to `limit` characters.

    Rows, keys and peers' messages can hold escape sequences that rewrite a terminal or forge a log line.
    """
    head = text[: limit + 1]
    safe = "".join(c if c.isprintable() else _escape(c) for c in head)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
