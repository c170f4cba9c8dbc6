"""Recovery domains in the configuration: kinds, their defaults, and whose runs each of them judges."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest
from pfsup.config import fields, values
from pfsup.config.domains import actor_of, kind_of, owned_actors
from pfsup.config.errors import ConfigError
from pfsup.config.load import Loaded, load
from pfsup.domains import registry
from pfsup.supervisor.cli import start

URL = {"PFSUP_DATABASE__URL": "postgresql://app@localhost/app"}


class Read(Protocol):
    """Load a file of this text, with these variables."""

    def __call__(self, text: str, **environ: str) -> Loaded: ...


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Load a file of this text."""

    def loaded(text: str, **environ: str) -> Loaded:
        path = tmp_path / "pfsup.toml"
        path.write_text(text)
        return load(str(path), environ={**URL, **environ})

    return loaded


def problem(read: Read, text: str) -> str:
    """The one problem that loading the file tells."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    (found,) = caught.value.problems
    return found


# Defaults


@pytest.mark.parametrize(
    ("kind", "interval", "batch_size", "stale_after"),
    [
        ("workflow", 10.0, 25, 1800.0),
        ("image_session", 10.0, 25, 5400.0),
        ("delivery", 10.0, 25, 1800.0),
        ("local_edit", 10.0, 25, 1200.0),
        ("agent", 10.0, 25, 1800.0),
        ("envelope", 5.0, 1000, 1800.0),
    ],
)
def test_domain_has_the_defaults_of_its_kind(
    read: Read, kind: str, interval: float, batch_size: int, stale_after: float
) -> None:
    loaded = read(f"[domains.{kind}]")
    domain = loaded.settings.domains[kind]
    assert (domain.interval, domain.batch_size, domain.stale_after) == (interval, batch_size, stale_after)
    assert loaded.origins[f"domains.{kind}.stale_after"] == "default"
    assert loaded.origins[f"domains.{kind}.interval"] == "default"


def test_domain_of_another_name_has_the_defaults_of_the_kind_that_is_written(read: Read) -> None:
    domain = read('[domains.pictures]\nkind = "image_session"').settings.domains["pictures"]
    assert domain == values.Domain(kind="image_session", stale_after=5400.0)


def test_what_a_person_wrote_goes_before_the_default_of_the_kind(read: Read) -> None:
    loaded = read('[domains.image_session]\nstale_after = "2h"', PFSUP_DOMAINS__LOCAL_EDIT__STALE_AFTER="25m")
    domains = loaded.settings.domains
    assert (domains["image_session"].stale_after, domains["local_edit"].stale_after) == (7200.0, 1500.0)
    assert loaded.origins["domains.local_edit.stale_after"] == "PFSUP_DOMAINS__LOCAL_EDIT__STALE_AFTER"


def test_kind_from_the_environment_brings_its_defaults(read: Read) -> None:
    domains = read("[domains.pictures]", PFSUP_DOMAINS__PICTURES__KIND="image_session").settings.domains
    assert domains["pictures"].stale_after == 5400.0


def test_defaults_of_every_kind_keep_the_limits_of_their_keys() -> None:
    for kind in values.KINDS:
        for path, key, value in fields.leaves(values.domain_of(kind)):
            assert key.low is None or value >= key.low, (kind, path)
            assert key.high is None or value <= key.high, (kind, path)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ('actor = "9"', "empty, or a letter"),
        ('schema = "pg_x"', "not beginning with pg_"),
        ('takeover_grace = "50ms"', "at least 100ms"),
        ('takeover_grace = "2h"', "at most 1h"),
        ('sent_grace = "999ms"', "at least 1s"),
    ],
)
def test_wrong_value_of_a_domain_is_told(read: Read, key: str, wanted: str) -> None:
    assert wanted in problem(read, f"[domains.delivery]\n{key}")


# Kinds


def test_every_built_in_kind_is_accepted_by_its_name_alone(read: Read) -> None:
    settings = read("\n".join(f"[domains.{kind}]" for kind in values.KINDS)).settings
    assert [kind_of(name, domain) for name, domain in settings.domains.items()] == list(settings.domains)
    assert set(settings.domains) == set(values.KINDS)
    assert {f"pfsup.domains.{kind}" for kind in values.KINDS} == {
        child.target.partition(":")[0] for child in start.children(settings) if child.group == "recovery"
    }


def test_table_is_told_as_not_available(read: Read) -> None:
    assert "not available in this version" in problem(read, '[domains.invoices]\nkind = "table"')


def test_kind_that_is_nearly_a_built_in_one_is_told_with_it(read: Read) -> None:
    assert "did you mean delivery?" in problem(read, '[domains.x]\nkind = "delivry"')
    assert "got no kind; did you mean image_session?" in problem(read, "[domains.image_sessions]")


def test_envelope_under_another_name_is_told(read: Read) -> None:
    told = problem(read, '[domains.healer]\nkind = "envelope"')
    assert "domains.healer.kind" in told
    assert "[domains.envelope]" in told


def test_section_called_envelope_is_of_no_other_kind(read: Read) -> None:
    told = problem(read, '[domains.envelope]\nkind = "shop.x:Y"\nenabled = false')
    assert "domains.envelope.kind" in told
    assert "enabled = false turns the built-in one off" in told


def test_silence_means_nothing_to_the_envelope_domain(read: Read) -> None:
    assert read('[domains.envelope]\nstale_after = "1s"').settings.domains["envelope"].stale_after == 1.0


def test_envelope_is_there_without_being_named(read: Read) -> None:
    named = read("[domains.delivery]").settings
    assert named.domains == {"envelope": values.Domain(interval=5.0, batch_size=1000), "delivery": values.Domain()}
    assert values.Settings().domains == {"envelope": named.domains["envelope"]}


def test_key_of_the_unnamed_envelope_is_set_from_the_environment_alone(read: Read) -> None:
    loaded = read("", PFSUP_DOMAINS__ENVELOPE__SENT_GRACE="90s")
    assert loaded.settings.domains == {"envelope": values.Domain(interval=5.0, batch_size=1000, sent_grace=90.0)}
    assert loaded.origins["domains.envelope.sent_grace"] == "PFSUP_DOMAINS__ENVELOPE__SENT_GRACE"
    assert loaded.origins["domains.envelope.interval"] == "default"


# Owners


@pytest.mark.parametrize(
    ("name", "domain", "actor"),
    [
        ("delivery", values.Domain(), "delivery"),
        ("delivery", values.Domain(actor="render"), "render"),
        ("posters", values.Domain(kind="delivery"), "posters"),
        ("delivery", values.Domain(enabled=False), "delivery"),
        ("envelope", values.Domain(), ""),
        ("envelope", values.Domain(actor="x"), ""),
        ("invoices", values.Domain(kind="shop.x:Y"), ""),
        ("invoices", values.Domain(kind="shop.x:Y", actor="send_invoice"), "send_invoice"),
        ("invoices", values.Domain(kind="table", actor="send_invoice", enabled=False), "send_invoice"),
        ("invoices", values.Domain(kind="table", enabled=False), ""),
    ],
)
def test_domain_judges_the_runs_of_its_actor(name: str, domain: values.Domain, actor: str) -> None:
    assert actor_of(name, domain) == actor
    assert owned_actors(values.Settings(domains={name: domain})) == ({actor} if actor else frozenset())


def test_owned_actors_are_those_of_every_section(read: Read) -> None:
    text = '[domains.delivery]\n[domains.x]\nkind = "a:B"\nactor = "mail"\n[domains.agent]\nenabled = false'
    assert owned_actors(read(text).settings) == {"delivery", "mail", "agent"}


@pytest.mark.parametrize("more", ["", "enabled = false\n"])
def test_two_domains_of_one_actor_are_told(read: Read, more: str) -> None:
    told = problem(read, f'[domains.delivery]\n[domains.posters]\n{more}kind = "a:B"\nactor = "delivery"')
    assert "domains.posters.actor" in told
    assert "domains.delivery does" in told


# What runs


def test_every_built_in_kind_has_a_class() -> None:
    assert set(registry.BUILT_IN) == set(values.KINDS)


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("image_session", "", "pfsup.domains.image_session:ImageSession"),
        ("posters", "delivery", "pfsup.domains.delivery:Delivery"),
        ("invoices", "shop.x:Y", "shop.x:Y"),
    ],
)
def test_target_is_the_class_of_the_kind(name: str, kind: str, target: str) -> None:
    assert registry.target(name, values.Domain(kind=kind)) == target


@pytest.mark.parametrize(("name", "kind"), [("x", ""), ("x", "table")])
def test_target_of_an_unknown_kind_is_a_config_error(name: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"domains.x.kind: this version has no domain of kind '{kind or name}'"):
        registry.target(name, values.Domain(kind=kind))


def test_children_are_the_enabled_domains_beside_dispatch_and_housekeeping(read: Read) -> None:
    children = start.children(read("[domains.agent]\nenabled = false\n[domains.delivery]").settings)
    assert [(child.name, child.group) for child in children] == [
        ("dispatch", "main"),
        ("envelope", "recovery"),
        ("delivery", "recovery"),
        ("housekeeping", "main"),
    ]


def test_envelope_runs_unless_it_is_turned_off(read: Read) -> None:
    names = [child.name for child in start.children(read("").settings)]
    assert names == ["dispatch", "envelope", "housekeeping"]
    off = start.children(read("[domains.envelope]\nenabled = false").settings)
    assert [child.name for child in off] == ["dispatch", "housekeeping"]


def test_only_chooses_the_unnamed_envelope_too(read: Read) -> None:
    children = start.children(read("").settings)
    assert [child.name for child in start.chosen(children, ("envelope",))] == ["envelope"]
