"""Paths, secrets, the example file, the commands' output, and what the parent may import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from pfsup.config import environment, example, fields, locate, paths, values
from pfsup.config.errors import ConfigError, Problem
from pfsup.config.load import load
from pfsup.config.secrets import MASK, masked, secret
from pfsup.supervisor.cli import check, config, look_files
from pfsup.supervisor.cli.findings import Finding

ROOT = Path(str(example.__file__)).parent.parent


# Paths


def test_runtime_directory_is_as_configured_else_xdg_else_run_for_root_else_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert paths.runtime_dir(values.Supervisor(runtime_dir="/x")) == Path("/x")
    assert paths.runtime_dir(values.Supervisor()) == Path("/run/user/7/pfsup")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.runtime_dir(values.Supervisor()) == Path("/run/pfsup")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert paths.runtime_dir(values.Supervisor(state_dir="/s")) == Path("/s")


def test_state_directory_is_as_configured_else_var_lib_for_root_else_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert paths.state_dir(values.Supervisor()) == Path("/var/lib/pfsup")
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert paths.state_dir(values.Supervisor()) == Path("/x/pfsup")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    assert paths.state_dir(values.Supervisor()) == Path("/home/u/.local/state/pfsup")


def test_user_without_a_home_is_told_to_set_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ConfigError, match="set state_dir"):
        paths.state_dir(values.Supervisor())


def test_files_of_an_instance_carry_its_name() -> None:
    supervisor = values.Supervisor(name="shop", runtime_dir="/r")
    assert paths.control_socket(supervisor) == Path("/r/shop.sock")
    assert paths.lock_file(supervisor) == Path("/r/shop.lock")
    assert paths.pid_file(supervisor) == Path("/r/shop.pid")


def test_socket_path_is_held_to_what_an_address_can_hold() -> None:
    fits = "/" + "r" * (paths.SOCKET_LIMIT_BYTES - len("//pfsup.sock"))
    assert paths.control_socket(values.Supervisor(runtime_dir=fits))
    with pytest.raises(ConfigError, match=r"108 bytes.*set \[supervisor\] runtime_dir"):
        paths.control_socket(values.Supervisor(runtime_dir=fits + "r"))


# The quick look of probe and status


def test_quick_look_finds_the_same_instance_as_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pfsup.toml"
    for text, environ in (
        ("", {}),
        ('[supervisor]\nname = "a"\nruntime_dir = "r"\nstate_dir = "~/s"\n', {}),
        ('[supervisor]\nname = "a"\n', {"PFSUP_SUPERVISOR__NAME": "b", "PFSUP_SUPERVISOR__RUNTIME_DIR": "q"}),
        ('[supervisor]\nstate_dir = "~nobody-of-that-name/s"\n', {}),
    ):
        file.write_text(text)
        quick = locate.supervisor(environ=environ)
        whole = load(environ={**environ, "PFSUP_DATABASE__URL": "postgresql:///x"}).settings.supervisor
        assert (quick.name, quick.runtime_dir, quick.state_dir) == (whole.name, whole.runtime_dir, whole.state_dir)


def test_quick_look_passes_over_what_the_loader_will_refuse(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[supervisor]\nname = 3\nruntime_dir = 4\n")
    assert locate.supervisor(str(file), environ={}) == paths.Place()
    file.write_text("supervisor = 3\n")
    assert locate.supervisor(str(file), environ={}) == paths.Place()


# What the parent may import


def test_what_the_parent_imports_of_config_needs_no_settings_library_loop_or_thread() -> None:
    modules = ["values", "errors", "paths", "locate", "secrets", "durations"]
    banned = [
        "pydantic",
        "pydantic_core",
        "pydantic_settings",
        "asyncio",
        "threading",
        "psycopg",
        "redis",
        "subprocess",
    ]
    code = (
        f"import sys; before = set(sys.modules); import {', '.join('pfsup.config.' + m for m in modules)}\n"
        f"print(sorted((set(sys.modules) - before) & set({banned!r})))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# Secrets


def test_secret_is_read_again_at_every_call(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("first\n")
    assert secret("value", str(file)) == "first"
    file.write_text("second")
    assert secret("value", str(file)) == "second"
    assert secret("value", "") == "value"


@pytest.mark.parametrize(("content", "why"), [("", "0 lines"), ("a\nhunter2\n", "2 lines"), ("x" * 70_000, "64 KiB")])
def test_unusable_secret_is_told_without_its_text(tmp_path: Path, content: str, why: str) -> None:
    file = tmp_path / "url"
    file.write_text(content)
    with pytest.raises(ConfigError, match=why) as caught:
        secret("", str(file))
    assert "hunter2" not in str(caught.value)


def test_missing_secret_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none: cannot read the secret: No such file"):
        secret("", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://h/d?password=p&user=u", "postgresql://h/d?***"),
        ("redis://:p@h/0", "redis://:***@h/0"),
        ("redis://u:p@ss@h/0", "redis://u:***@h/0"),
        ("redis://u:p/q@h/0", MASK),
        ("redis://u:p?q@h/0", MASK),
        ("redis://u:p#q@h/0", MASK),
        ("unix:///tmp/r.sock?db=1", "unix:///tmp/r.sock?***"),
        ("host=h password=p", MASK),
    ],
)
def test_address_is_shown_without_what_opens_it(url: str, shown: str) -> None:
    assert masked(url) == shown


# The example file


def test_example_file_is_what_the_settings_print() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "pfsup.config.example"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == example.example()
    assert (ROOT / "config" / "pfsup.example.toml").read_text() == printed


def test_example_file_loads_as_the_defaults() -> None:
    settings = load(str(ROOT / "config" / "pfsup.example.toml"), environ={}).settings
    assert settings == values.Settings(database=values.Database(url="postgresql://pfsup@localhost:5432/app"))


def test_example_file_with_every_line_taken_in_loads_as_the_defaults_too(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(re.sub(r"(?m)^#(?! )", "", example.example()))
    loaded = load(str(file), environ={})
    assert loaded.settings == values.Settings(
        database=values.Database(url="postgresql://pfsup@localhost:5432/app"),
        queues={"emails": values.Queue()},
        actors={"send_email": values.Actor()},
        domains={**values.unnamed_domains(), "invoices": values.Domain(kind="shop.recovery:Invoices")},
    )
    unset = {key for key, origin in loaded.origins.items() if origin == "default"}
    assert unset == {f"domains.envelope.{'.'.join(path)}" for path, _, _ in fields.leaves(values.Domain())}


def test_table_for_the_readme_names_every_key_once() -> None:
    rows = [line.split("`")[1] for line in example.table().splitlines()[2:]]
    maps = {
        "queues": {"NAME": values.Queue()},
        "actors": {"NAME": values.Actor()},
        "domains": {"NAME": values.Domain()},
    }
    everything = values.Settings(**maps)  # pyright: ignore[reportArgumentType] - three maps of three types
    assert rows == [".".join(path) for path, _, _ in fields.leaves(everything)]


def test_variables_that_our_own_tools_read_are_known_to_the_loader() -> None:
    named = {
        name
        for folder in ("supervisor", "shared", "domains", "scripts", ".ci")
        for file in sorted((ROOT / folder).rglob("*"))
        if file.is_file() and file.suffix != ".pyc"
        for name in re.findall(r"\bPFSUP_[A-Z][A-Z_]*[A-Z]\b", file.read_text(errors="replace"))
        if "__" not in name
    }
    assert named <= environment.OTHER_VARIABLES


# Problems and commands


def test_problem_reads_as_place_key_wanted_got_and_next_step() -> None:
    problem = Problem(where="p.toml:3", path="a.b", wanted="text", got="3", hint="quote it")
    assert str(problem) == "p.toml:3: a.b: wanted text, got 3; quote it"
    assert str(Problem(path="a.b: cannot do it")) == "a.b: cannot do it"
    assert ConfigError(["one", problem]).details == (Problem(path="one"), problem)


def run(command: click.Command, *arguments: str, url: str = "postgresql://u:hunter2@h/db") -> Result:
    """Run one command as the command line does."""
    return CliRunner().invoke(command, list(arguments), env={"PFSUP_DATABASE__URL": url}, catch_exceptions=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file that sets one thing."""
    path = tmp_path / "p.toml"
    path.write_text('[dispatch]\nscan_interval = "2s"\n')
    return str(path)


def test_config_command_prints_every_value_with_its_origin_and_no_password(file: str) -> None:
    result = run(config.command, "-c", file)
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    assert re.search(rf'dispatch\.scan_interval = "2s" +# {re.escape(file)}:2\n', result.output)
    assert re.search(r'database\.url = "postgresql://u:\*\*\*@h/db" +# PFSUP_DATABASE__URL\n', result.output)
    assert len(result.output.splitlines()) == 1 + len(list(fields.leaves(values.Settings())))


def test_config_command_prints_one_object_with_json(file: str) -> None:
    printed = json.loads(run(config.command, "-c", file, "--json").output)
    assert (printed["schema"], printed["file"]) == (1, file)
    rows = {row["key"]: row for row in printed["settings"]}
    assert rows["dispatch.scan_interval"] == {
        "key": "dispatch.scan_interval",
        "value": "2s",
        "written": '"2s"',
        "origin": f"{file}:2",
    }
    assert rows["dispatch.enabled"]["value"] is True
    assert rows["database.url"]["value"] == "postgresql://u:***@h/db"


def test_check_ends_with_78_and_every_problem_before_it_looks_at_a_server(file: str) -> None:
    result = run(check.command, "-c", file, url="http://hunter2")
    assert result.exit_code == 78
    assert "database.url" in result.stderr
    printed = json.loads(run(check.command, "-c", file, "--json", url="http://hunter2").output)
    assert (printed["exit_code"], printed["findings"]) == (78, [])
    assert [p["path"] for p in printed["problems"]] == ["database.url"]
    assert "hunter2" not in json.dumps(printed)


@pytest.mark.parametrize(
    ("states", "code"),
    [([], 0), (["ok", "warning"], 0), (["ok", "away"], 75), (["away", "failed"], 1)],
)
def test_check_ends_with_the_code_of_its_worst_finding(states: list[str], code: int) -> None:
    assert check.exit_code(Finding(subject="x", state=s, text="t") for s in states) == code  # pyright: ignore[reportArgumentType] - texts of the table


def test_check_warns_of_a_password_that_every_user_can_read(tmp_path: Path) -> None:
    path, url = tmp_path / "p.toml", tmp_path / "url"
    url.write_text("")

    def texts(file: str, environ: dict[str, str]) -> list[str]:
        path.write_text(file)
        return [finding.text for finding in look_files.look(load(str(path), environ=environ))]

    with_password, without = "[database]\nurl = 'postgresql://u:hunter2@h/d'", "[database]\nurl = 'postgresql://u@h/d'"
    for mode, told in ((0o644, True), (0o600, False)):
        path.touch()
        path.chmod(mode)
        url.chmod(mode)
        assert (texts(with_password, {}) == [f"every user can read {path}"]) is told
        assert texts(without, {}) == []
        assert texts("", {"PFSUP_DATABASE__URL": "postgresql://u:hunter2@h/d"}) == []
        assert (texts("", {"PFSUP_DATABASE__URL_FILE": str(url)}) == [f"every user can read {url}"]) is told
    url.unlink()
    assert texts("", {"PFSUP_DATABASE__URL_FILE": str(url)}) == []
