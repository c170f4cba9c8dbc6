"""Where the reference tables of the built-in recovery domains stand."""

from __future__ import annotations

from ...config.errors import ConfigError, Problem
from ...config.fields import dotted
from ...config.values import Domain, Settings

BUILT_IN = ("delivery", "image_session", "local_edit", "workflow", "agent")
DEFAULT = "productflow"


def reference_schema(settings: Settings) -> str:
    """Return the one schema that every section of a built-in domain names, enabled or not; DEFAULT without sections.

    Fails with ConfigError when two sections differ, or when it is pfsup's own schema: each has its book of migrations.
    """
    named = {
        dotted("domains", name, "schema"): _schema_of(domain)
        for name, domain in settings.domains.items()
        if (domain.kind or name) in BUILT_IN
    }
    first, schema = next(iter(named.items()), ("", DEFAULT))
    problems = [
        Problem(path=path, wanted=f"{schema!r} as in {first}", got=repr(other), hint="tables are made in one schema")
        for path, other in named.items()
        if other != schema
    ]
    if schema == settings.database.schema:
        hint = "set schema in the domains' sections or in [database]"
        problems.append(Problem(path=first or "database.schema", wanted="two schemas", got=repr(schema), hint=hint))
    if problems:
        raise ConfigError(problems)
    return schema


def _schema_of(domain: Domain) -> str:
    named: str = getattr(domain, "schema", DEFAULT)
    return named
