"""reference_schema: the one schema of the reference tables, out of what the domains' sections say."""

from __future__ import annotations

import pytest
from pfsup.config.errors import ConfigError
from pfsup.config.values import Database, Domain, Settings
from pfsup.supervisor.cli.reference import reference_schema


def settings(*, own: str = "pfsup", **domains: Domain) -> Settings:
    return Settings(database=Database(url="postgresql://x/y", schema=own), domains=domains)


def test_without_sections_it_is_the_default() -> None:
    assert reference_schema(settings()) == "productflow"


def test_it_is_what_the_sections_say_enabled_or_not_and_whatever_they_are_called() -> None:
    shop = Domain(kind="workflow", schema="shop")
    assert reference_schema(settings(agent=Domain(schema="shop", enabled=False), graphs=shop)) == "shop"


def test_domains_without_reference_tables_do_not_count() -> None:
    mine = Domain(kind="shop.recovery:Invoices", schema="other")
    assert reference_schema(settings(mine=mine, envelope=Domain(schema="third"), agent=Domain(schema="shop"))) == "shop"


def test_sections_that_differ_are_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"domains\.agent\.schema: wanted 'a' as domains\.delivery\.schema says, got 'b'"
    ):
        reference_schema(settings(delivery=Domain(schema="a"), agent=Domain(schema="b")))


@pytest.mark.parametrize(("own", "domains"), [("productflow", {}), ("shop", {"agent": Domain(schema="shop")})])
def test_schema_of_pfsup_itself_is_refused(own: str, domains: dict[str, Domain]) -> None:
    with pytest.raises(ConfigError, match=f"wanted another schema than pfsup's own, got '{own}'"):
        reference_schema(settings(own=own, **domains))
