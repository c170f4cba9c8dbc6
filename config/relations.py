"""What must hold between values, and what a name or an address must look like. Each rule is a function of the settings.

A rule yields the faults it finds; `paths` are the keys it read, the first is the one to change. A rule about a key
whose value was refused already is passed over, so that one mistake is told once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .domains import LATER, actor_of, kind_of, owners
from .durations import text
from .fields import dotted
from .secrets import scheme_of
from .values import ENVELOPE, KINDS, NAME_PATTERN, NAME_WANTED, Actor, Pool, Settings

Given = Callable[[str], bool]  # whether a person wrote the key's value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What does not fit: the keys it is about, what was wanted, what is there, what to do."""

    paths: tuple[str, ...]
    wanted: str
    got: str
    hint: str = ""


Rule = Callable[[Settings, Given], Iterator[Fault]]

OWN_CHILDREN = ("dispatch", "housekeeping", "http", "parent")


def _beats(settings: Settings, _: Given) -> Iterator[Fault]:
    supervisor = settings.supervisor
    if supervisor.beat_timeout < 3 * supervisor.beat_interval - 1e-9:
        yield Fault(
            paths=("supervisor.beat_timeout", "supervisor.beat_interval"),
            wanted=f"at least 3 × beat_interval ({text(3 * supervisor.beat_interval)})",
            got=text(supervisor.beat_timeout),
            hint="one late beat must not cost a child: raise beat_timeout or lower beat_interval",
        )


def _claims(settings: Settings, _: Given) -> Iterator[Fault]:
    lease = settings.dispatch.claim_lease
    for path, limit in (
        ("database.statement_timeout", settings.database.statement_timeout),
        ("redis.socket_timeout", settings.redis.socket_timeout),
    ):
        if lease <= limit:
            yield Fault(
                paths=("dispatch.claim_lease", path),
                wanted=f"more than {path} ({text(limit)})",
                got=text(lease),
                hint="else a claim ends while its own statement or send still runs",
            )


def _sends(settings: Settings, _: Given) -> Iterator[Fault]:
    dispatch = settings.dispatch
    if dispatch.max_in_flight > dispatch.pool.max:
        yield Fault(
            paths=("dispatch.max_in_flight", "dispatch.pool.max"),
            wanted=f"at most dispatch.pool.max ({dispatch.pool.max})",
            got=str(dispatch.max_in_flight),
            hint="each batch in flight needs a connection to mark its rows: raise pool.max or lower max_in_flight",
        )


def _pools(settings: Settings, _: Given) -> Iterator[Fault]:
    for path, pool in pools(settings):
        if pool.min > pool.max:
            yield Fault(
                paths=(f"{path}.min", f"{path}.max"), wanted=f"at most {path}.max ({pool.max})", got=str(pool.min)
            )


def pools(settings: Settings) -> Iterator[tuple[str, Pool]]:
    """Every process's pool of connections, with its path."""
    yield "dispatch.pool", settings.dispatch.pool
    yield "housekeeping.pool", settings.housekeeping.pool
    for name, domain in settings.domains.items():
        yield dotted("domains", name, "pool"), domain.pool


def _silences(settings: Settings, _: Given) -> Iterator[Fault]:
    """A worker beats within its lease; until that is over its silence is legal, and no domain may call it stale.

    A domain that owns no actor may look after any actor's rows: the longest lease counts.
    """
    leases = {"the default lease of an actor": Actor().lease}
    leases |= {dotted("actors", name, "lease"): actor.lease for name, actor in settings.actors.items()}
    longest = max(leases, key=lambda path: leases[path])
    default = next(iter(leases))
    for name, domain in settings.domains.items():
        owned = actor_of(name, domain)
        key = dotted("actors", owned, "lease") if owned in settings.actors else default if owned else longest
        if kind_of(name, domain) != ENVELOPE and domain.stale_after <= leases[key]:
            yield Fault(
                paths=(dotted("domains", name, "stale_after"), key),
                wanted=f"more than the longest legal silence ({text(leases[key])}, {key})",
                got=text(domain.stale_after),
                hint="else healthy runs are taken away",
            )


def _actors(settings: Settings, _: Given) -> Iterator[Fault]:
    for name, actor in settings.actors.items():
        if actor.retry_cap < actor.retry_base:
            yield Fault(
                paths=(dotted("actors", name, "retry_cap"), dotted("actors", name, "retry_base")),
                wanted=f"at least retry_base ({text(actor.retry_base)})",
                got=text(actor.retry_cap),
            )


def _names(settings: Settings, _: Given) -> Iterator[Fault]:
    for section, names in (("queues", settings.queues), ("actors", settings.actors)):
        for name in names:
            if re.fullmatch(NAME_PATTERN, name) is None:
                yield Fault(paths=(dotted(section, name),), wanted=NAME_WANTED, got=repr(name[:140]))


def _domains(settings: Settings, _: Given) -> Iterator[Fault]:
    for name, domain in settings.domains.items():
        path = dotted("domains", name)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,39}", name) is None or name in OWN_CHILDREN:
            wanted = "a letter or _, then letters, digits, _ and -, at most 40 characters, no process of pfsup's own"
            yield Fault(paths=(path,), wanted=wanted, got=repr(name[:140]), hint="rename the section")
        kind = kind_of(name, domain)
        if ENVELOPE in (name, kind):
            yield from _only_envelope(f"{path}.kind", name, kind)
        elif domain.enabled:
            yield from _kind(f"{path}.kind", kind, written=bool(domain.kind))


def _only_envelope(path: str, name: str, kind: str) -> Iterator[Fault]:
    """The outbox has one healer, [domains.envelope]; two would judge each row twice."""
    if name != ENVELOPE:
        hint = "set its keys under [domains.envelope]"
        yield Fault(paths=(path,), wanted=f"a kind that is not {ENVELOPE}", got=f'"{ENVELOPE}"', hint=hint)
    elif kind != ENVELOPE:
        hint = "give the section another name; [domains.envelope] enabled = false turns the built-in one off"
        yield Fault(paths=(path,), wanted=f'"{ENVELOPE}" in the section of that name', got=repr(kind[:60]), hint=hint)


def _kind(path: str, kind: str, *, written: bool) -> Iterator[Fault]:
    wanted = f"one of {', '.join(k for k in KINDS if k != ENVELOPE)}, or module:Class"
    if kind in LATER:
        hint = "take the section out, or set enabled = false"
        yield Fault(paths=(path,), wanted=wanted, got=f'"{kind}", which is not available in this version', hint=hint)
    elif kind not in KINDS and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", kind) is None:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else 'name the class that does it: kind = "shop.recovery:Invoices"'
        yield Fault(paths=(path,), wanted=wanted, got=repr(kind[:60]) if written else "no kind", hint=hint)


def _owners(settings: Settings, _: Given) -> Iterator[Fault]:
    """One judge for each running row: two domains of one actor would each take it from the other."""
    first: dict[str, str] = {}
    for actor, name in owners(settings):
        if first.setdefault(actor, name) != name:
            yield Fault(
                paths=(dotted("domains", name, "actor"), dotted("domains", first[actor], "actor")),
                wanted=f"an actor that no other domain looks after ({dotted('domains', first[actor])} does)",
                got=repr(actor),
                hint="name another actor, or take one of the two sections out",
            )


def _database(settings: Settings, given: Given) -> Iterator[Fault]:
    database = settings.database
    if not database.url and not database.url_file:
        hint = 'set [database] url = "postgresql://…", url_file, or PFSUP_DATABASE__URL'
        yield Fault(
            paths=("database.url", "database.url_file"), wanted="the address of a PostgreSQL", got="nothing", hint=hint
        )
    for key in ("url", "listen_url", "migrate_url"):
        yield from _address(f"database.{key}", getattr(database, key), getattr(database, f"{key}_file"), given)
        value: str = getattr(database, key)
        if value and scheme_of(value) not in ("postgresql", "postgres") and not re.match(r"\s*[a-z_]+\s*=", value):
            wanted = 'postgresql://user@host:port/database, or "host=… dbname=…"'
            yield Fault(paths=(f"database.{key}",), wanted=wanted, got=_other(value))


def _redis(settings: Settings, given: Given) -> Iterator[Fault]:
    redis = settings.redis
    yield from _address("redis.url", redis.url, redis.url_file, given)
    if not redis.url and not redis.url_file:
        yield Fault(
            paths=("redis.url",),
            wanted="the address of a Redis",
            got="nothing",
            hint="leave the key out for the default",
        )
    if redis.url and scheme_of(redis.url) not in ("redis", "rediss", "unix"):
        yield Fault(
            paths=("redis.url",), wanted="redis://host:port/0, rediss://… or unix:///path", got=_other(redis.url)
        )


def _address(path: str, value: str, file: str, given: Given) -> Iterator[Fault]:
    if value and file and given(path):
        hint = "keep one of them"
        yield Fault(paths=(path, f"{path}_file"), wanted=f"this or {path}_file", got="both", hint=hint)


def _other(address: str) -> str:
    """What kind of address it is, without showing it: it may hold a password."""
    scheme = scheme_of(address)
    return (
        f"an address with the scheme {scheme[:20]}"
        if scheme
        else f"a text of {len(address)} characters without a scheme"
    )


RULES: tuple[Rule, ...] = (
    _database, _redis, _beats, _claims, _sends, _pools, _silences, _actors, _names, _domains, _owners,
)  # fmt: skip
