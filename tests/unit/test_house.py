"""The house: packaging, lazy names, and what the parent process must never load."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pfsup
import pytest

ROOT = Path(pfsup.__file__).parent
ROOMS = ("config", "shared", "domains", "supervisor")
# threading is not here: logging imports it, for its locks; that no thread runs is asserted before every fork.
NOT_IN_THE_PARENT = ("psycopg", "redis", "asyncio", "uvloop", "subprocess", "pydantic", "multiprocessing")


def setuptools_table() -> dict[str, object]:
    """[tool.setuptools] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def folders_with(pattern: str) -> set[str]:
    """Dotted names of the package's folders that hold a file matching `pattern`."""
    found = (p.parent.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob(pattern))
    return {".".join(("pfsup", *folder.parts)) for folder in found}


def test_packages_list_names_every_folder_with_an_init() -> None:
    """A folder that is forgotten here is missing from the wheel, and only from the wheel."""
    assert set(setuptools_table()["packages"]) == {"pfsup"} | folders_with("__init__.py")  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["*.sql", "*.toml"])
def test_package_data_names_every_folder_with_data(pattern: str) -> None:
    """Migrations, queries and the example must be in the wheel."""
    table = setuptools_table()["package-data"]
    named = {folder for folder, patterns in table.items() if pattern in patterns}  # type: ignore[attr-defined]
    assert named == folders_with(pattern)


def test_every_public_name_can_be_imported() -> None:
    """`__all__` is a promise."""
    for name in pfsup.__all__:
        assert getattr(pfsup, name).__module__.startswith("pfsup.")


def test_unknown_public_name_is_an_attribute_error() -> None:
    """A lazy package must not turn a typo into an import error."""
    with pytest.raises(AttributeError, match="no attribute 'stagee'"):
        getattr(pfsup, "stagee")  # noqa: B009 - the typo is the test


def loaded_by(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    program = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


def test_import_of_the_package_loads_no_driver() -> None:
    """An application that only wants an exception class pays for nothing."""
    assert not loaded_by("import pfsup") & {"psycopg", "redis", "click", "pydantic", "asyncio", "orjson"}


def test_parent_loads_no_database_broker_loop_or_thread() -> None:
    """The parent's own modules bring none of them; children's modules are preloaded by name, later."""
    files = sorted((ROOT / "supervisor/parent").glob("*.py"))
    imports = "; ".join(f"import pfsup.supervisor.parent.{f.stem}" for f in files if f.stem != "__init__")
    at_start = loaded_by("pass")  # a coverage hook or an editable finder may already be there
    assert not (loaded_by(imports) - at_start) & set(NOT_IN_THE_PARENT)


def test_lazy_names_and_all_agree() -> None:
    """What is announced can be found, and what can be found is announced."""
    assert sorted(pfsup._HOMES) == sorted(pfsup.__all__) == dir(pfsup)  # pyright: ignore[reportPrivateUsage]
