"""What the demo is given and what it makes of it: servers that run, a folder, logins, and pfsup's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from ...config.errors import PfsupError
from ...shared.db.migrate import migrate
from ...shared.db.migrations import reference_tables
from ...shared.db.queries import Queries, load_queries
from .orders import DOMAINS, LEASE_S, QUEUES, RETRY_S

SCHEMA, PRODUCT = "pfsup", "productflow"
APP, WORKER, SUPERVISOR = "shop_app", "shop_worker", "shop_supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`owner_url`: PostgreSQL as the owner of a migrated database; `folder`: private, for configuration and logs;
    `sockets`: private too, with a path so short that a socket's address holds it.
    """

    owner_url: str
    redis_url: str
    folder: Path
    sockets: Path

    def url_of(self, login: str) -> str:
        """The same database as another login (no password: the socket lies in a private folder)."""
        return make_conninfo(self.owner_url, user=login)

    @property
    def socket(self) -> Path:
        """Where the provider listens."""
        return self.sockets / "provider.sock"

    @property
    def calls(self) -> Path:
        """The provider's own log of the calls that arrived."""
        return self.folder / "provider.calls"

    @property
    def config(self) -> Path:
        """pfsup's configuration file."""
        return self.folder / "pfsup.toml"


def shop_queries() -> Queries:
    """The shop's SQL."""
    return load_queries(__package__ or "", "shop.sql", schema=SCHEMA)


def prepare(place: Place) -> None:
    """Make the shop's tables and logins, the product's reference tables, and write pfsup's configuration."""
    migrate(place.owner_url, schema=PRODUCT, steps=reference_tables(PRODUCT, outbox=SCHEMA))
    with psycopg.connect(place.owner_url) as conn:
        conn.execute(shop_queries()["create"])
    place.config.write_text(config_text(place))
    place.config.chmod(0o600)


def config_text(place: Place) -> str:
    """The configuration as a user would write it: where things are, and which actor's work goes to which queue."""
    for text in (place.url_of(SUPERVISOR), place.redis_url, str(place.folder)):
        if "'" in text:
            raise PfsupError(f"cannot write the demo's configuration: there is a quote in {text!r}")
    actors = "".join(
        f"[actors.{name}]\nqueue = '{queue}'\nretry_base = '{RETRY_S * 1000:.0f}ms'\nlease = '{LEASE_S:g}s'\n"
        for name, queue in QUEUES.items()
    )
    # A crash of the play is noticed within its minute: short leases, quick looks. The defaults are far more patient.
    quick = "interval = '300ms'\ntakeover_grace = '1s'\nshare = 1.0\nbatch_size = 250\n"
    domains = "".join(f"[domains.{name}]\n{quick}stale_after = '5s'\n" for name in DOMAINS)
    domains += f"[domains.envelope]\n{quick}sent_grace = '2s'\n"
    return (
        f"[database]\nurl = '''{place.url_of(SUPERVISOR)}'''\n"
        f"[redis]\nurl = '{place.redis_url}'\n"
        f"[supervisor]\nname = 'demo'\nruntime_dir = '{place.folder}/run'\nstate_dir = '{place.folder}/state'\n"
        f"{actors}{domains}"
    )
