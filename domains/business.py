"""A domain over a table of the application's own: its phases in one cycle, as its section of the configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from ..config.values import Domain, Settings
from ..shared.db.connect import Connection
from ..shared.db.queries import Queries, load_queries
from ..shared.points import NO_POINTS, Points
from .contract import Link
from .cycle import Cycle, unlocked
from .decisions import Limits
from .looks import Looks
from .loop import Recovery, load_shared
from .orphans import ORPHANS
from .phase import Phase, Subject
from .session import Session
from .walk import START


class Business(Recovery):
    """The role of a built-in business domain: `package` holds its queries.sql, `phases` are its kinds of candidates.

    `table`: whose rows its envelopes stand for; lost runs without an open row there are its last kind of candidates.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        package: str,
        phases: Sequence[Phase[Any]],
        table: str,
        points: Points = NO_POINTS,
    ) -> None:
        self._subject = subject(settings, name, package=package, table=table)
        self._phases = phases_of(self._subject, phases)
        schema = settings.domains[name].schema
        super().__init__(
            settings,
            name,
            make=self._begin,
            look=self._find_nothing,
            missing=f"tables of schema {schema} are missing or too old, run: pfsup migrate --with productflow",
            points=points,
        )

    async def _begin(self, session: Session, looks: Looks, link: Link, stack: AsyncExitStack) -> Cycle:
        del link, stack
        return Cycle(self._subject, self._phases, session, looks)

    async def _find_nothing(self, conn: Connection) -> None:
        """Run every finder over no row: it raises when a table, a column or a right is missing."""
        asked = self._subject.params(after_at=START[0], after_id=START[1], page=0, most=0)
        for phase in self._phases:
            queries = unlocked(self._subject.queries, phase.find) if self._subject.observes else self._subject.queries
            await conn.execute(queries[phase.find], asked)


def subject(settings: Settings, name: str, *, package: str, table: str) -> Subject:
    """Whose cycle it is, from `[domains.NAME]`."""
    domain = settings.domains[name]
    schema, productflow = settings.database.schema, domain.schema
    own = domain_queries(package, schema=schema, productflow=productflow)
    orphans = load_queries("pfsup.domains", "orphans.sql", schema=schema, productflow=productflow, table=table)
    return Subject(
        domain=name,
        actor=domain.actor or name,
        limits=limits_of(domain),
        batch_size=domain.batch_size,
        queries=own | orphans,
        shared=load_shared(settings),
        observes=domain.mode == "observe",
    )


def domain_queries(package: str, *, schema: str, productflow: str) -> Queries:
    """The statements of a business domain, with the end that its finders share."""
    parts = load_queries("pfsup.domains", "finder.sql", schema=schema)
    return load_queries(package, "queries.sql", schema=schema, parts=parts, productflow=productflow)


def phases_of(whose: Subject, own: Sequence[Phase[Any]]) -> tuple[Phase[Any], ...]:
    """The domain's own phases, then its orphans; who only observes has no right to lock an envelope for those."""
    return tuple(own) if whose.observes else (*own, ORPHANS)


def limits_of(domain: Domain) -> Limits:
    """What one section allows."""
    return Limits(
        stale_after_s=domain.stale_after,
        max_recoveries=domain.max_recoveries,
        interval_s=domain.interval,
        takeover_grace_s=domain.takeover_grace,
        share=domain.share,
    )
