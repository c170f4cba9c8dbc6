"""Loading: what is read, what goes before what, and that every fault is told, once, without a secret."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.config import fields, values
from pfsup.config.errors import EXIT_CONFIG, ConfigError
from pfsup.config.layers import lines_of
from pfsup.config.load import Loaded, load

URL = {"PFSUP_DATABASE__URL": "postgresql://app@localhost/app"}
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the file and return its path."""

    def written(text: str) -> str:
        path = tmp_path / "pfsup.toml"
        path.write_text(text)
        return str(path)

    return written


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(path: str | None = None, *, environ: Mapping[str, str] = URL) -> list[str]:
    """The problems that loading tells."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ)
    assert caught.value.exit_code == EXIT_CONFIG
    return list(caught.value.problems)


def only_problem(path: str | None = None, *, environ: Mapping[str, str] = URL) -> str:
    """The one problem that loading tells."""
    found = problems(path, environ=environ)
    assert len(found) == 1, found
    return found[0]


def test_settings_without_a_file_are_the_defaults(elsewhere: Path) -> None:
    del elsewhere
    loaded = load(environ=URL)
    assert loaded.path is None
    assert loaded.settings == values.Settings(database=values.Database(url=URL["PFSUP_DATABASE__URL"]))


def test_every_key_has_an_origin(write: Write) -> None:
    path = write('[dispatch]\n\npool = { max = 8 }\n[actors."mail.send"]\nlease = "2m"\n')
    loaded = load(path, environ={**URL, "PFSUP_LOG__LEVEL": "debug"}, flags={"supervisor.name": ("shop", "--name")})
    assert set(loaded.origins) == {fields.dotted(*p) for p, _, _ in fields.leaves(loaded.settings)}
    assert loaded.origins["dispatch.pool.max"] == f"{path}:3"
    assert loaded.origins["dispatch.pool.min"] == "default"
    assert loaded.origins['actors."mail.send".lease'] == f"{path}:5"
    assert loaded.origins["log.level"] == "PFSUP_LOG__LEVEL"
    assert loaded.origins["supervisor.name"] == "flag --name"
    assert loaded.settings.supervisor.name == "shop"


def test_environment_goes_before_the_file_and_the_file_before_the_default(write: Write) -> None:
    path = write('[dispatch]\nscan_interval = "2s"\nbatch_size = 7\npool = { min = 2, max = 6 }\n')
    environ = {**URL, "PFSUP_DISPATCH__BATCH_SIZE": "9", "PFSUP_DISPATCH__POOL__MAX": "5"}
    dispatch = load(path, environ=environ).settings.dispatch
    assert (dispatch.scan_interval, dispatch.batch_size, dispatch.pool) == (2.0, 9, values.Pool(min=2, max=5))


def test_named_table_left_partly_open_keeps_its_defaults(write: Write) -> None:
    path = write('[actors.mail]\nlease = "90s"\n[domains.invoices]\nkind = "shop.x:Y"\npool = { max = 3 }\n')
    settings = load(path, environ=URL).settings
    assert settings.actors["mail"] == values.Actor(lease=90.0)
    assert settings.domains["invoices"] == values.Domain(kind="shop.x:Y", pool=values.Pool(max=3))


def test_default_search_takes_config_variable_then_working_directory(elsewhere: Path) -> None:
    (elsewhere / "pfsup.toml").write_text('[supervisor]\nname = "here"\n')
    (elsewhere / "other.toml").write_text('[supervisor]\nname = "there"\n')
    assert load(environ=URL).settings.supervisor.name == "here"
    assert load(environ={**URL, "PFSUP_CONFIG": "other.toml"}).settings.supervisor.name == "there"
    assert load("pfsup.toml", environ={**URL, "PFSUP_CONFIG": "other.toml"}).settings.supervisor.name == "here"


def test_relative_paths_are_seen_from_where_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, work = tmp_path / "etc", tmp_path / "work"
    config.mkdir()
    work.mkdir()
    (config / "p.toml").write_text('[database]\nurl_file = "secret"\n[log]\nfile = "/var/log/p.log"\n')
    monkeypatch.chdir(work)
    settings = load("../etc/p.toml", environ={"PFSUP_SUPERVISOR__STATE_DIR": "state"}).settings
    assert Path(settings.database.url_file).resolve() == config / "secret"
    assert settings.log.file == "/var/log/p.log"
    assert settings.supervisor.state_dir == str(work / "state")


# Names in the environment


@pytest.mark.parametrize(
    ("file", "variable", "name"),
    [
        ("", "PFSUP_ACTORS__SEND_MAIL__LEASE", "send_mail"),
        ("", "PFSUP_ACTORS__sendMail__LEASE", "sendMail"),
        ("[actors.SendMail]", "PFSUP_ACTORS__SENDMAIL__LEASE", "SendMail"),
        ("[actors.SENDMAIL]\n[actors.SendMail]", "PFSUP_ACTORS__SENDMAIL__LEASE", "SENDMAIL"),
        ('[actors."mail.send-now"]', "PFSUP_ACTORS__MAIL_SEND_NOW__LEASE", "mail.send-now"),
        ("", "PFSUP_ACTORS__A__B__LEASE", "a__b"),
    ],
)
def test_name_in_the_environment_is_found_or_made_by_the_documented_rule(
    write: Write, file: str, variable: str, name: str
) -> None:
    actors = load(write(file), environ={**URL, variable: "7m"}).settings.actors
    assert actors[name].lease == 420.0


def test_name_that_two_names_share_in_capitals_is_told(write: Write) -> None:
    path = write('[actors."a.b"]\n[actors."a-b"]\n')
    assert "'a.b', 'a-b'" in only_problem(path, environ={**URL, "PFSUP_ACTORS__A_B__LEASE": "7m"})


def test_domain_in_the_environment_reaches_its_pool(elsewhere: Path) -> None:
    del elsewhere
    environ = {**URL, "PFSUP_DOMAINS__BILLING__KIND": "shop.b:B", "PFSUP_DOMAINS__BILLING__POOL__MAX": "4"}
    assert load(environ=environ).settings.domains["billing"].pool.max == 4


@pytest.mark.parametrize(("text", "wanted"), [("true", True), ("FALSE", False)])
def test_truth_in_the_environment_is_true_or_false(elsewhere: Path, text: str, wanted: bool) -> None:
    del elsewhere
    assert load(environ={**URL, "PFSUP_DISPATCH__ENABLED": text}).settings.dispatch.enabled is wanted


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("PFSUP_DATABSE__SCHEMA", "PFSUP_DATABASE__SCHEMA"),
        ("PFSUP_DISPATCH__SCAN_INTERVALL", "PFSUP_DISPATCH__SCAN_INTERVAL"),
        ("PFSUP_ACTORS__MAIL__LEASES", "PFSUP_ACTORS__MAIL__LEASE"),
        ("PFSUP_DISPATCH__POOL", "PFSUP_DISPATCH__POOL__M"),
        ("PFSUP_DATABASE_URL", "PFSUP_DATABASE__URL"),
    ],
)
def test_unknown_variable_is_told_with_the_nearest_name_and_without_its_value(
    elsewhere: Path, variable: str, near: str
) -> None:
    del elsewhere
    told = only_problem(environ={**URL, variable: "hunter2"})
    assert told.startswith(variable)
    assert f"did you mean {near}" in told
    assert "hunter2" not in told


def test_far_unknown_variable_is_told_too(elsewhere: Path) -> None:
    del elsewhere
    assert "pfsup config" in only_problem(environ={**URL, "PFSUP_Q": "1"})


@pytest.mark.parametrize(
    "variable",
    ["PFSUP_SERVICE_HOST", "PFSUP_PORT", "PFSUP_PORT_80_TCP_ADDR", "PFSUP_WEB_SERVICE_PORT_HTTP", "PFSUP_VENV"],
)
def test_variables_that_kubernetes_or_our_own_tools_set_are_no_settings(elsewhere: Path, variable: str) -> None:
    del elsewhere
    assert load(environ={**URL, variable: "tcp://10.0.0.1:80"}).settings.supervisor.name == "pfsup"


# Faults


def test_every_problem_is_told_at_once(write: Write) -> None:
    path = write("""
[database]
url = "postgres://u:hunter2@h/db"
conect_timeout = "5s"
statement_timeout = 5
[dispatch]
claim_lease = "2s"
batch_size = "100"
wake = "notfy"
pool = { min = 5, max = 3 }
[supervisor]
beat_timeout = "2s"
name = "a/b"
scan_interval = "1s"
[domains.table]
[actors."bad name"]
[log]
file = 3
level = "loud"
[nonsense]
""")
    told = problems(path, environ={"PFSUP_DISPATCH__ENABLED": "yes"})
    places = {problem.removeprefix(f"{path}:").split(":")[0] for problem in told}
    assert places == {"PFSUP_DISPATCH__ENABLED", *map(str, [4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20])}
    text = "\n".join(told)
    assert "hunter2" not in text
    for hint in (
        "did you mean connect_timeout?",
        'write the unit: "5s" is seconds',
        "write it without quotes",
        'did you mean "notify"?',
        "scan_interval is a key of [dispatch]",
        "write it in quotes",
        "not available in this version",
        "known here: database",
    ):
        assert hint in text, text


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("[dispatch]\nbatch_size = true", "a whole number, at least 1, at most 10000, got true"),
        ("[dispatch]\nbatch_size = 0", "got 0"),
        ("[dispatch]\nbatch_size = 1.5", "got 1.5"),
        ("[dispatch]\nbatch_size = [1]", "got a list"),
        ("[dispatch]\nscan_interval = 2024-01-01", "got a date or time"),
        ("[dispatch]\nscan_interval = true", "got true"),
        ("[dispatch]\nscan_interval = '1'", 'write the unit: "1s"'),
        ("[dispatch]\nscan_interval = '2h'", "at least 10ms, at most 1h, got '2h'"),
        ("[dispatch]\nenabled = 1", "true or false, got 1"),
        ("[dispatch]\npool = 3", "a table of keys, got a number"),
        ("dispatch = 'x'", "a table of keys, got a text of 1 characters"),
        ("[domains]\nfoo = 3", "a table of keys"),
        ("[database]\nschema = 'Shop'", "lower-case letters"),
        ("[database]\nschema = 'pg_shop'", "not beginning with pg_"),
        ("[database]\nschema = 'a\\n'", "lower-case"),
        (f"[database]\nschema = '{'a' * 41}'", "at most 40 characters"),
        ("[supervisor]\nname = '../x'", "a letter or digit"),
        (f"[supervisor]\nname = '{'x' * 90}'", "(90 characters)"),
        ("[supervisor]\nstop_timeout = '0s'", "at least 100ms"),
        ("[supervisor]\nboot_timeout = '0s'", "at least 100ms"),
        ("[redis]\ngroup = ''", "1 to 128"),
        ('[queues.x]\nstream = "a\\u0000"', "printable"),
        ("[actors.x]\nqueue = '9'", "empty, or a letter"),
    ],
)
def test_wrong_value_is_told_with_what_is_wanted_and_what_is_there(write: Write, file: str, wanted: str) -> None:
    assert wanted in only_problem(write(file))


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("[supervisor]\nbeat_timeout = '2999ms'", "supervisor.beat_timeout"),
        ("[database]\nstatement_timeout = '30s'", "dispatch.claim_lease"),
        ("[redis]\nsocket_timeout = '30s'", "dispatch.claim_lease"),
        ("[dispatch]\nmax_in_flight = 5", "dispatch.max_in_flight"),
        ("[housekeeping]\npool = { min = 2 }", "housekeeping.pool.min"),
        ("[domains.x]\nkind = 'a:B'\nstale_after = '60s'", "domains.x.stale_after"),
        ("[domains.x]\nkind = 'a:B'\nstale_after = '5m'\n[actors.y]\nlease = '5m'", "domains.x.stale_after"),
        ("[actors.x]\nretry_cap = '1s'", "actors.x.retry_cap"),
        ("[queues.'a b']", 'queues."a b"'),
        ("[actors.'']", 'actors.""'),
        ("[domains.x]\nkind = 'nonsense'", "domains.x.kind"),
        ("[domains.x]", "domains.x.kind"),
        ("[domains.x]\nkind = 'table'", "domains.x.kind"),
        ("[domains.dispatch]\nkind = 'a:B'", "domains.dispatch"),
        ("[domains.'a b']\nkind = 'a:B'", 'domains."a b"'),
        ("[database]\nurl_file = 'x'", "database.url"),
        ("[database]\nlisten_url = 'http://h'", "database.listen_url"),
        ("[database]\nmigrate_url = 'nothing'", "database.migrate_url"),
        ("[database]\nmigrate_url = 'postgresql://['", "database.migrate_url"),
        ("[redis]\nurl = ''", "redis.url"),
        ("[redis]\nurl = 'localhost'", "redis.url"),
        ("[redis]\nurl = 'redis://h'\nurl_file = 'x'", "redis.url"),
    ],
)
def test_impossible_relation_is_told_under_the_key_to_change(write: Write, file: str, path: str) -> None:
    told = problems(write(file))
    assert any(f": {path}: " in problem for problem in told), told
    assert all(": wanted " in problem for problem in told)


@pytest.mark.parametrize(
    "file",
    [
        "[supervisor]\nbeat_timeout = '300ms'\nbeat_interval = '100ms'",
        "[domains.delivery]\nenabled = false",
        "[redis]\nurl_file = '/run/secret'",
        "[redis]\nurl = 'unix:///tmp/r.sock'",
        "[database]\nmigrate_url = 'host=/tmp dbname=x'",
    ],
)
def test_settings_at_the_edge_are_accepted(write: Write, file: str) -> None:
    assert load(write(file), environ=URL)


def test_missing_database_address_is_told_with_the_ways_to_give_it(elsewhere: Path) -> None:
    del elsewhere
    told = only_problem(environ={})
    assert "database.url" in told
    assert "PFSUP_DATABASE__URL" in told


def test_relation_of_a_refused_value_is_not_told_again(write: Write) -> None:
    assert "got 40" in only_problem(write("[dispatch]\nclaim_lease = 40\n[database]\nstatement_timeout = '35s'"))


def test_fault_of_the_file_is_told_though_the_environment_sets_a_key_below_it(write: Write) -> None:
    told = only_problem(write("dispatch = 3"), environ={**URL, "PFSUP_DISPATCH__POOL__MAX": "9"})
    assert "a table of keys" in told


# Files


@pytest.mark.parametrize(
    ("text", "place"),
    [("[database\n", ":1:10"), ("[database]\nurl = x\n", ":2:7"), ("a = 1\na = 2\n", ":2:6"), ('a = """x', ":1:9")],
)
def test_toml_fault_is_told_with_line_and_column(write: Write, text: str, place: str) -> None:
    path = write(text)
    told = only_problem(path)
    assert told.startswith(path + place + ": cannot read TOML"), told


def test_named_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "No such file" in only_problem(str(tmp_path / "none.toml"))
    assert "Is a directory" in only_problem(str(tmp_path))
    assert "No such file" in only_problem(environ={"PFSUP_CONFIG": str(tmp_path / "none.toml")})


def test_file_that_is_not_utf8_or_too_large_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"a = '\xff'")
    assert "byte 5 is not UTF-8" in only_problem(str(path))
    assert "larger than 1 MiB" in only_problem("/dev/zero")


def test_deeply_nested_file_is_told_not_raised(write: Write) -> None:
    assert "TOML" in only_problem(write("a = " + "[" * 5000 + "]" * 5000))


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbf[log]\r\nlevel = 'debug'\r\n")
    loaded = load(str(path), environ=URL)
    assert (loaded.settings.log.level, loaded.origins["log.level"]) == ("debug", f"{path}:2")


def test_lines_are_found_over_comments_long_values_and_dotted_keys() -> None:
    text = "# x\n[a.b]\nc.d = 1\ne = [\n 1,\n]\n'f g' = '''\n[x]\n'''\nh = { i = 1, j = { k = 2 } }\n[z]\ny = 1\n"
    assert lines_of(text) == {
        ("a", "b"): 2,
        ("a", "b", "c", "d"): 3,
        ("a", "b", "e"): 4,
        ("a", "b", "f g"): 7,
        ("a", "b", "h", "i"): 10,
        ("a", "b", "h", "j", "k"): 10,
        ("z",): 11,
        ("z", "y"): 12,
    }


# Secrets


def test_secret_appears_in_no_problem_whatever_is_wrong(write: Write) -> None:
    secret = "postgresql://u:hunter2@h/db"
    path = write(
        f"database = '{secret}'\n[redis]\nurl = 'http://u:hunter2@h'\nsocket_timeout = '{secret}'\n"
        f"pasword = 'hunter2'\ngroup = 'password hunter2'\n[actors]\nx = '{secret}'\n"
    )
    told = "\n".join(problems(path, environ={"PFSUP_DATABASE": secret, "PFSUP_SUPERVISOR__NAME": secret}))
    assert "hunter2" not in told
    assert "redis.url" in told


def test_secret_is_not_logged_by_the_settings_library(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del elsewhere
    monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
    caplog.set_level("DEBUG")
    load(environ={"PFSUP_DATABASE__URL": "postgresql://u:hunter2@h/db"})
    assert "hunter2" not in caplog.text


def test_settings_do_not_show_an_address_when_printed(elsewhere: Path) -> None:
    del elsewhere
    environ = {"PFSUP_DATABASE__URL": "postgresql://u:hunter2@h/db", "PFSUP_REDIS__URL": "redis://:hunter2@h"}
    assert "hunter2" not in repr(load(environ=environ))


def test_name_with_control_characters_reaches_no_terminal(write: Write) -> None:
    told = only_problem(write('[dispatch]\n"\\u001b[2J" = 1\n'))
    assert "\x1b" not in told
    assert r"\U0000001b[2J" in told


# Properties

_names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
_sections = sorted(fields.keys_of(values.Settings))


@given(section=st.sampled_from([*_sections, ""]), name=_names, entry=st.sampled_from(["", "x"]))
def test_unknown_keys_anywhere_are_told(
    tmp_path_factory: pytest.TempPathFactory, section: str, name: str, entry: str
) -> None:
    path = (section, *([entry] if section and entry else []), name)
    parts = tuple(part for part in path if part)
    if fields.find(parts) is not None:
        return
    file = tmp_path_factory.getbasetemp() / "unknown.toml"
    file.write_text(f"{'.'.join(fields.quoted(part) for part in parts)} = 1\n", newline="")
    told = problems(str(file))
    assert any(fields.dotted(*parts) in t or fields.dotted(*parts[:-1]) in t for t in told), told


@given(st.dictionaries(st.sampled_from(_sections), st.dictionaries(_names, st.integers() | st.text() | st.booleans())))
def test_loader_gives_settings_or_config_error_for_any_file(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, dict[str, int | str | bool]]
) -> None:
    lines: list[str] = []
    for section, keys in tree.items():
        lines.append(f"[{section}]")
        for name, value in keys.items():
            shown = fields.quoted(value) if isinstance(value, str) else str(value).lower()
            lines.append(f"{fields.quoted(name)} = {shown}")
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_text("\n".join(lines), newline="", errors="replace")
    found: tuple[str, ...] = ()
    try:
        assert isinstance(load(str(file), environ=URL), Loaded)
    except ConfigError as error:
        found = error.problems or ("no problem told",)
    assert all(problem.isprintable() and problem != "no problem told" for problem in found)


def test_every_setting_has_a_sentence_and_a_valid_default() -> None:
    for path, key, value in fields.leaves(values.Settings()):
        assert key.rule.says.endswith("."), path
        low, high = key.low, key.high
        assert low is None or value >= low, path
        assert high is None or value <= high, path
        assert not key.choices or value in key.choices, path


def test_settings_are_frozen(elsewhere: Path) -> None:
    del elsewhere
    settings = load(environ=URL).settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.dispatch.batch_size = 3  # pyright: ignore[reportAttributeAccessIssue] - what the test is about
