"""Where the reference tables of the built-in recovery domains stand."""

from __future__ import annotations

from ...config.domains import ENVELOPE, kind_of
from ...config.errors import ConfigError, Problem
from ...config.fields import dotted
from ...config.values import KINDS, Domain, Settings


def reference_schema(settings: Settings) -> str:
    """Return the one schema that every section of a built-in domain names, enabled or not; else the key's default.

    Fails with ConfigError when two sections differ, or when it is pfsup's own schema: each has its book of migrations.
    """
    named = {
        dotted("domains", name, "schema"): domain.schema
        for name, domain in settings.domains.items()
        if kind_of(name, domain) in KINDS.keys() - {ENVELOPE}
    }
    first, schema = next(iter(named.items()), ("database.schema", Domain().schema))
    problems = [
        Problem(
            path=path, wanted=f"{schema!r} as {first} says", got=repr(other), hint="--with makes tables in one schema"
        )
        for path, other in named.items()
        if other != schema
    ]
    if schema == settings.database.schema:
        hint = "set schema in the sections of the built-in domains, or in [database]"
        problems.append(Problem(path=first, wanted="another schema than pfsup's own", got=repr(schema), hint=hint))
    if problems:
        raise ConfigError(problems)
    return schema
