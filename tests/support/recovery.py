"""One recovery domain without a supervisor: its cycles one at a time, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from pfsup.config import values
from pfsup.domains.business import phases_of, subject
from pfsup.domains.cycle import Cycle
from pfsup.domains.envelope import envelope_cycle
from pfsup.domains.envelope.cycle import EnvelopeCycle
from pfsup.domains.looks import Looks
from pfsup.domains.loop import recovery_pool
from pfsup.domains.report import Report
from pfsup.domains.session import Session
from pfsup.shared.drain import Drain
from pfsup.shared.points import NO_POINTS, Points
from pfsup.shared.sinks.redis_wire import Wires

from .database import Database


class Clock:
    """Monotonic seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        """Let `seconds` go by."""
        self.now += seconds


def domain_settings(database: Database, name: str, **domain: Any) -> values.Settings:
    """Settings with one domain's section, the other keys as the domain's kind has them."""
    settings = database.settings()
    section = replace(values.domain_of(domain.get("kind") or name), **({"share": 1.0} | domain))
    return replace(settings, domains={name: section})


@dataclass(slots=True, kw_only=True)
class Domain:
    """A domain ready to cycle."""

    cycle: Cycle
    looks: Looks
    session: Session
    clock: Clock
    drain: Drain

    async def run(self) -> Report:
        """One cycle."""
        return await self.cycle.run_once(self.drain)

    async def run_twice(self) -> list[Report]:
        """Two cycles, the takeover grace apart: enough to take a lost run."""
        first = await self.run()
        self.clock.pass_(self.looks.grace_s + 1)
        return [first, await self.run()]


@asynccontextmanager
async def domain(
    database: Database,
    kind: str,
    *,
    name: str = "",
    points: Points = NO_POINTS,
    as_reader: bool = False,
    **section: Any,
) -> AsyncGenerator[Domain]:
    """The built-in domain of this kind, as the supervisor's role (or a reader's) sees the database."""
    name = name or kind
    settings = domain_settings(database, name, **({"kind": kind} if name != kind else {}), **section)
    if as_reader:
        settings = replace(settings, database=replace(settings.database, url=database.read_url))
    package = f"pfsup.domains.{kind}"
    module = import_module(package)
    clock = Clock()
    async with recovery_pool(settings, name, application_name=f"test:{name}") as pool:
        session = Session(pool, settings.database, points=points)
        looks = Looks(settings.domains[name].takeover_grace, monotonic=clock)
        whose = subject(settings, name, package=package, table=module.TABLE)
        cycle = Cycle(whose, phases_of(whose, module.PHASES), session, looks)
        yield Domain(cycle=cycle, looks=looks, session=session, clock=clock, drain=Drain())


@dataclass(slots=True, kw_only=True)
class Outbox:
    """The envelope domain ready to cycle."""

    cycle: EnvelopeCycle
    looks: Looks
    session: Session
    clock: Clock
    drain: Drain

    async def run(self) -> Report:
        """One cycle."""
        return await self.cycle.run_once(self.drain)


@asynccontextmanager
async def envelopes(
    database: Database,
    *,
    redis: values.Redis | None = None,
    others: Iterable[str] = (),
    points: Points = NO_POINTS,
    **section: Any,
) -> AsyncGenerator[Outbox]:
    """The envelope domain, as the supervisor's role sees the database; `others` are business domains that exist."""
    settings = domain_settings(database, "envelope", **section)
    domains = settings.domains | {name: values.domain_of(name) for name in others}
    settings = replace(settings, domains=domains, **({"redis": redis} if redis else {}))
    clock, wires = Clock(), Wires(settings.redis, client_name="test")
    async with recovery_pool(settings, "envelope", application_name="test:envelope") as pool:
        session = Session(pool, settings.database, points=points)
        looks = Looks(domains["envelope"].takeover_grace, monotonic=clock)
        cycle = envelope_cycle(settings, session=session, looks=looks, wires=wires)
        try:
            yield Outbox(cycle=cycle, looks=looks, session=session, clock=clock, drain=Drain())
        finally:
            await wires.close()
