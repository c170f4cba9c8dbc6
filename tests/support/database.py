"""One database for one test: a copy of a migrated template, seen through each role."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from pfsup.config import values

from .servers import OWNER, PgServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database and how each role reaches it. Every role but the superuser is NOSUPERUSER."""

    server: PgServer
    name: str
    redis_url: str
    directory: Path
    schema: str = "pfsup"

    @property
    def url(self) -> str:
        """The owner, who migrated it (NOSUPERUSER, CREATEROLE)."""
        return self.server.url(self.name, OWNER)

    @property
    def empty_url(self) -> str:
        """The owner's address, under the name that tests of an unmigrated database use."""
        return self.url

    @property
    def app_url(self) -> str:
        """The application: only role <schema>_stage."""
        return self.server.url(self.name, "t_app")

    @property
    def worker_url(self) -> str:
        """A worker: only role <schema>_work."""
        return self.server.url(self.name, "t_worker")

    @property
    def run_url(self) -> str:
        """The supervisor's processes: only role <schema>_run."""
        return self.server.url(self.name, "t_run")

    @property
    def operate_url(self) -> str:
        """An operator: only role <schema>_operate."""
        return self.server.url(self.name, "t_operate")

    @property
    def read_url(self) -> str:
        """A reader: only role <schema>_read."""
        return self.server.url(self.name, "t_read")

    def superuser(self) -> psycopg.Connection:
        """An autocommit connection of the superuser: to arrange and to look, never what is tested."""
        return self.server.superuser(self.name)

    def settings(self, **overrides: Any) -> values.Settings:
        """Settings for this database and its Redis; each override replaces a whole section."""
        base = values.Settings(
            database=values.Database(url=self.run_url, migrate_url=self.url, schema=self.schema),
            redis=values.Redis(url=self.redis_url),
            supervisor=values.Supervisor(
                runtime_dir=str(self.directory / "run"), state_dir=str(self.directory / "state")
            ),
        )
        return replace(base, **overrides)


@contextmanager
def fresh_database(
    server: PgServer, *, redis_url: str, directory: Path, schema: str | None = "pfsup"
) -> Generator[Database]:
    """A database of one's own, dropped at the end; `schema` None leaves it unmigrated."""
    name = server.create(template=server.template(schema) if schema is not None else None)
    try:
        yield Database(server=server, name=name, redis_url=redis_url, directory=directory, schema=schema or "pfsup")
    finally:
        server.drop(name)
