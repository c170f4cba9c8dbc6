"""Envelope: the outbox heals itself. Lost messages are sent anew, lost runs of actors without a domain are judged."""

from __future__ import annotations

from contextlib import AsyncExitStack

from ...config.domains import owned_actors
from ...config.values import Settings
from ...shared.db.queries import load_queries
from ...shared.points import NO_POINTS, Points
from ...shared.sinks.redis_wire import Wires
from ..business import limits_of
from ..contract import Link
from ..looks import Looks
from ..loop import Recovery, load_shared
from ..session import Session
from .cycle import EnvelopeCycle, Rules
from .streams import Entries


class Envelope(Recovery):
    """The role of `[domains.envelope]`."""

    def __init__(self, settings: Settings, name: str, *, points: Points = NO_POINTS) -> None:
        self._settings = settings
        super().__init__(settings, name, make=self._begin, points=points)

    async def _begin(self, session: Session, looks: Looks, link: Link, stack: AsyncExitStack) -> EnvelopeCycle:
        wires = Wires(self._settings.redis, client_name=link.identity.application_name, most=1)
        stack.push_async_callback(wires.close)
        return envelope_cycle(self._settings, session=session, looks=looks, wires=wires)


def envelope_cycle(settings: Settings, *, session: Session, looks: Looks, wires: Wires) -> EnvelopeCycle:
    """The domain's cycle over these connections."""
    domain = settings.domains["envelope"]
    rules = Rules(
        limits=limits_of(domain),
        batch_size=domain.batch_size,
        grace_s=domain.sent_grace,
        owned=tuple(sorted(owned_actors(settings))),
    )
    queries = load_queries("pfsup.domains.envelope", "queries.sql", schema=settings.database.schema)
    entries = Entries(wires, group=settings.redis.group)
    return EnvelopeCycle(rules, queries, load_shared(settings), session=session, looks=looks, entries=entries)
