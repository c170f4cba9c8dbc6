"""Which class runs a domain. Text only: the class is imported in the process that runs it, or before the first fork."""

from __future__ import annotations

from ..config.domains import kind_of
from ..config.errors import ConfigError
from ..config.values import Domain

BUILT_IN = {
    "envelope": "pfsup.domains.envelope:Envelope",
    "workflow": "pfsup.domains.workflow:Workflow",
    "image_session": "pfsup.domains.image_session:ImageSession",
    "delivery": "pfsup.domains.delivery:Delivery",
    "local_edit": "pfsup.domains.local_edit:LocalEdit",
    "agent": "pfsup.domains.agent:Agent",
}


def target(name: str, domain: Domain) -> str:
    """The class that runs the section `name`, as "module:Class". Raises ConfigError when this version has none."""
    kind = kind_of(name, domain)
    if ":" in kind:
        return kind
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    why = f"this version has no domain of kind {kind!r}; name a class of yours as module:Class"
    raise ConfigError((f"domains.{name}.kind: {why}",))
