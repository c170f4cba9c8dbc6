"""A row that this process holds: its token, and what was learnt about it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from uuid import UUID

Loss = Literal["late", "cancel", "deadline", "drain"]


class Hold:
    """One run's right to its row. The beat thread and the run share it; each field is written by one of them.

    `lost`: why the run should stop (late: the row is another's; cancel: a person ended it; deadline: max_run is over;
    drain: the worker ends). `settled`: the run's end is committed. `open_effects`: begun by this run and not proved.
    """

    __slots__ = ("_on_lost", "id", "lost", "open_effects", "settled", "token")

    def __init__(self, dispatch_id: int, token: UUID) -> None:
        self.id = dispatch_id
        self.token = token
        self.lost: Loss | None = None
        self.settled = False
        self.open_effects: set[str] = set()
        self._on_lost: Callable[[], object] | None = None

    def __repr__(self) -> str:
        return f"<Hold {self.id} lost={self.lost} settled={self.settled} open_effects={sorted(self.open_effects)}>"

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call `call` once the row is lost, also when it is already. It must be safe to call from another thread."""
        self._on_lost = call
        if self.lost:
            call()

    def lose(self, why: Loss) -> None:
        """Say that the run should stop; only the first reason counts."""
        if self.lost is not None:
            return
        self.lost = why
        if self._on_lost is not None:
            self._on_lost()
