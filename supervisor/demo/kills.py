"""Workers that die, one boundary after another, all the time that the shop is open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .boundaries import Boundary
from .cast import Cast
from .orders import DOMAINS

DOOMED = 3  # at a time
# The start of a worker is half a second of processor: often until one has died at every boundary, then now and then.
HASTE_S, REST_S = 0.5, 2.0
# What the doomed die with: a task of any actor for two, of one domain for the third; that one has other boundaries.
ACTORS = tuple(actor for domain in DOMAINS for actor in ("", "", domain))
OF_DOMAINS = (Boundary.BEGUN, Boundary.EFFECT_BEGUN, Boundary.EFFECT_DONE, Boundary.SETTLED)
OF_DELIVERY = (Boundary.BEGUN, Boundary.SETTLED)  # it calls nobody outside


@dataclass(frozen=True, slots=True)
class Kill:
    """One worker that was killed: where it stood, and with which row of which actor, as far as it knew itself."""

    boundary: Boundary
    actor: str
    subject: str


class Killer:
    """The act of the play: keeps a few doomed workers, kills each with SIGKILL where it stands still."""

    def __init__(self) -> None:
        self.kills: list[Kill] = []
        self._standing: dict[str, Boundary] = {}
        self._started = 0
        self._next_s = 0.0

    def __repr__(self) -> str:
        return f"<Killer kills={len(self.kills)} standing={self._standing}>"

    @property
    def by_boundary(self) -> dict[Boundary, int]:
        """How many workers died at each boundary, those where none did included."""
        counted = Counter(kill.boundary for kill in self.kills)
        return {boundary: counted[boundary] for boundary in Boundary}

    @property
    def complete(self) -> bool:
        """Whether a worker died at every boundary."""
        return all(self.by_boundary.values())

    def act(self, elapsed_s: float, cast: Cast) -> None:
        """Kill who stands at its boundary, and start a successor that is to die at the next."""
        for name in list(self._standing):
            found = [line for line in cast.heard(name) if line.startswith("at ")]
            if found:
                cast.kill(name)
                self._standing.pop(name)
                boundary, actor, subject = found[0].removeprefix("at ").split("|")
                self.kills.append(Kill(Boundary(boundary), actor, subject))
        if len(self._standing) < DOOMED and elapsed_s >= self._next_s:
            self._start(cast)
            self._next_s = elapsed_s + (REST_S if self.complete else HASTE_S)

    def end(self, cast: Cast) -> None:
        """The shop is closed: who has not come to its boundary dies where it is."""
        for name in self._standing:
            cast.kill(name)
        self._standing.clear()

    def _start(self, cast: Cast) -> None:
        actor = ACTORS[self._started % len(ACTORS)]
        boundary = self._wanted(actor)
        self._started += 1
        name = f"doomed {self._started}"
        cast.start_doomed(name, boundary, actor)
        self._standing[name] = boundary

    def _wanted(self, actor: str) -> Boundary:
        """The boundary that the fewest have died or stand at, with a task of `actor`; in the order of a run."""
        choice = {"": tuple(Boundary), "delivery": OF_DELIVERY}.get(actor, OF_DOMAINS)
        counted = Counter(kill.boundary for kill in self.kills if actor in ("", kill.actor))
        counted += Counter(self._standing.values())
        return min(choice, key=lambda boundary: counted[boundary])
