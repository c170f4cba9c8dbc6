"""What the migrations are: folders `m<version>_<name>` of SQL files, run in order of name, `@schema@` replaced.

Beside pfsup's own there are trees of reference tables (`EXTRAS`): they stand in a schema of their own, have a book of
migrations of their own and grant to pfsup's roles. There `@<tree>@` is their schema and `@schema@` still pfsup's.

A file that ends in `_roles.sql` creates cluster-wide roles and grants; where that is not allowed it is printed for an
administrator instead (`pfsup migrate --no-roles`), so it is no part of the migration's checksum.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable

from ...config.errors import SchemaError
from .. import sql

_FOLDER = re.compile(r"^m(\d{4})_(\w+)$")
_ROLES = "_roles.sql"
EXTRAS = ("productflow",)  # folders of shared/sql


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema: `body` is the SQL of its tables, functions and views, `roles` of its grants."""

    version: int
    name: str
    body: str
    roles: str
    extra: str = ""  # the tree, when it is not pfsup's own
    outbox: str = ""  # such a tree's pfsup: the name of its schema

    @property
    def title(self) -> str:
        """How people name it: 0001 outbox."""
        return f"{self.version:04d} {self.name}"

    @property
    def checksum(self) -> str:
        """SHA-256 over the text as shipped: a database remembers which text made it."""
        return hashlib.sha256(self.body.encode()).hexdigest()

    def named(self, text: str, schema: str) -> str:
        """Return SQL of this step with the names in it; `schema` is the one that the step's tables stand in."""
        if self.extra:
            text = text.replace(f"@{self.extra}@", schema)
        return text.replace("@schema@", self.outbox or schema)


def migrations(root: Traversable | None = None) -> tuple[Migration, ...]:
    """Return every migration this version ships, in order; versions are 1, 2, 3 without a gap."""
    found = sorted(_found(root or files(sql)), key=lambda migration: migration.version)
    versions = [migration.version for migration in found]
    if versions != list(range(1, len(found) + 1)):
        raise SchemaError(f"cannot use the migrations of this installation: versions {versions} have a gap; reinstall")
    return tuple(found)


def reference_tables(name: str, *, outbox: str) -> tuple[Migration, ...]:
    """Return the migrations of the reference tables `name` (one of EXTRAS) beside a pfsup in schema `outbox`."""
    found = migrations(files(sql).joinpath(name))
    return tuple(replace(migration, extra=name, outbox=outbox) for migration in found)


def _found(root: Traversable) -> Iterator[Migration]:
    for folder in root.iterdir():
        if match := _FOLDER.match(folder.name):
            yield _read(folder, version=int(match[1]), name=match[2])


def _read(folder: Traversable, *, version: int, name: str) -> Migration:
    parts = sorted((part for part in folder.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name)
    return Migration(
        version=version,
        name=name,
        body=_joined(part for part in parts if not part.name.endswith(_ROLES)),
        roles=_joined(part for part in parts if part.name.endswith(_ROLES)),
    )


def _joined(parts: Iterable[Traversable]) -> str:
    return "\n".join(f"-- {part.name}\n{part.read_text('utf-8').rstrip()}\n" for part in parts)


def opening(schema: str) -> str:
    """Return the head of the one transaction: pinned settings, the lock, the schema and its book of migrations."""
    return _OPENING.replace("@schema@", schema)


def step(migration: Migration, schema: str) -> str:
    """Return one migration's SQL, ending with its line in the book."""
    entry = (
        f"INSERT INTO {schema}.schema_migrations (version, name, checksum)"  # noqa: S608 - our own text, checked names
        f" VALUES ({migration.version}, '{migration.name}', '{migration.checksum}');\n"
    )
    return f"{migration.named(migration.body, schema)}\n{entry}"


def roles_of(chosen: Iterable[Migration], schema: str) -> str:
    """Return the SQL that creates the roles and grants of these migrations; running it twice changes nothing."""
    return "\n".join(migration.named(migration.roles, schema) for migration in chosen if migration.roles)


def script(pending: Iterable[Migration], schema: str, *, roles: bool) -> str:
    """Return exactly what `migrate` runs for these migrations, for psql or a review; one transaction."""
    chosen = tuple(pending)
    if not chosen:
        return f"-- nothing to run: schema {schema} is up to date\n"
    parts = [opening(schema), *(step(migration, schema) for migration in chosen)]
    if roles:
        parts.append(roles_of(chosen, schema))
    return "\n".join([*parts, "COMMIT;\n"])


# CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database even when the schema exists, hence the DO block.
# search_path is empty so that every name in a migration must be qualified or built in.
_OPENING = """\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL lock_timeout = '200ms';
SET LOCAL statement_timeout = 0;
SET LOCAL search_path = pg_catalog;
SET LOCAL client_min_messages = warning;
SELECT pg_advisory_xact_lock(hashtextextended('pfsup migrate @schema@', 0));
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '@schema@') THEN
        CREATE SCHEMA @schema@;
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS @schema@.schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_by text NOT NULL DEFAULT session_user,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
