"""What a look of `pfsup check` gives: one line, with the next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "away"]

NAME = "pfsup:check"  # what the servers' lists of clients show


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `away`: it may come back by itself. `failed`: a person must act; `next_step` says how."""

    subject: str
    state: State
    text: str
    next_step: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<7}  {self.subject:<13}  {self.text}"
        return line + (f"; {self.next_step}" if self.next_step else "")
