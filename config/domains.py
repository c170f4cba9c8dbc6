"""What kind a domain is of, and whose runs it judges. Pure functions of the settings: children ask them too."""

from __future__ import annotations

from collections.abc import Iterator

from .values import ENVELOPE, KINDS, Domain, Settings

LATER = ("table",)  # known by name, not available in this version


def kind_of(name: str, domain: Domain) -> str:
    """The kind of the section `name`: as written, else the name itself."""
    return domain.kind or name


def actor_of(name: str, domain: Domain) -> str:
    """The actor whose running rows this domain alone judges; "" when it judges none.

    A built-in business domain owns `actor`, else the actor of its name. A class of the user's, and a table, own one
    only where `actor` says so. The envelope domain owns none: it judges what nobody else does.
    """
    kind = kind_of(name, domain)
    if kind == ENVELOPE:
        return ""
    return domain.actor or (name if kind in KINDS else "")


def owners(settings: Settings) -> Iterator[tuple[str, str]]:
    """(actor, section) for each section that owns an actor, enabled or not: another supervisor may run it."""
    for name, domain in settings.domains.items():
        if actor := actor_of(name, domain):
            yield actor, name


def owned_actors(settings: Settings) -> frozenset[str]:
    """The actors whose running rows belong to a business domain: the envelope domain leaves them alone."""
    return frozenset(actor for actor, _ in owners(settings))
