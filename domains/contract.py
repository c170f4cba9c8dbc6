"""What a child process is made of: the role (its work) and the link (its parent, its orders, its identity).

The shell in supervisor/runtime makes the Link, builds the role by `target`, and runs it. A role never sees a socket,
a signal or the parent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..config.values import Settings
from ..shared.drain import Drain
from ..shared.wake import WakeSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this process is, for claims, application names and logs.

    `boot_id` is new at every start of the supervisor (uuid text); `generation` counts the starts of this child within
    the boot, from 1. `claimed_by` in the database is `<boot_id>/<generation>`.
    """

    instance: str  # [supervisor] name
    boot_id: str
    name: str
    generation: int

    @property
    def claimed_by(self) -> str:
        """The text that claims of this process carry."""
        return f"{self.boot_id}/{self.generation}"

    @property
    def application_name(self) -> str:
        """What pg_stat_activity and CLIENT LIST show."""
        return f"pfsup:{self.name}:{self.generation}"


class Link(Protocol):
    """The child's side of the supervision, as its role sees it. Everything here returns at once."""

    @property
    def identity(self) -> Identity: ...

    @property
    def wake(self) -> WakeSlot:
        """Set when the parent passes on a wake-up."""
        ...

    @property
    def drain(self) -> Drain:
        """Asked for by the parent's message or SIGTERM."""
        ...

    def ready(self) -> None:
        """Say once that the role does its work. Before that the boot deadline runs (but not while waiting)."""
        ...

    def phase(self, name: str) -> None:
        """Name what the role does now, for `status` (idle, scanning, sending, ...)."""
        ...

    def waiting(self, reason: str | None) -> None:
        """Enter (text: what is missing and the remedy) or leave (None) the waiting state. It is never a fault."""
        ...

    def report(self, figures: Mapping[str, Any]) -> None:
        """Hand over the newest figures for `status`; JSON values only. Replaces the figures reported before."""
        ...

    def wake_peer(self, name: str) -> None:
        """Ask the parent to wake another child."""
        ...


class Role(Protocol):
    """The work of one child process."""

    def __init__(self, settings: Settings, name: str) -> None: ...

    async def run(self, link: Link) -> None:
        """Work until `link.drain` is asked for, then finish what began and return. Raising means a crash."""
        ...
