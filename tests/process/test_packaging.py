"""What is shipped: one top-level package, every file that is needed, installable without this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import pfsup
import pytest

ROOT = Path(pfsup.__file__).parent
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def build(what: str, *, source: Path, target: Path) -> Path:
    """Run the build backend as an installer does, without fetching anything."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{what}", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel() -> Generator[zipfile.ZipFile]:
    """The wheel, built from the source distribution, built from a copy: a build folder keeps deleted modules."""
    with TemporaryDirectory(prefix="pfsup-packaging-") as place:
        copy = Path(place) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
        sdist = build("sdist", source=copy, target=Path(place))
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        source = Path(place) / sdist.name.removesuffix(".tar.gz")
        with zipfile.ZipFile(build("wheel", source=source, target=Path(place))) as made:
            yield made


def test_wheel_holds_one_top_level_package(wheel: zipfile.ZipFile) -> None:
    """Bare `supervisor` or `config` would break somebody's imports."""
    info = next(name for name in wheel.namelist() if name.endswith("top_level.txt"))
    assert wheel.read(info).decode().split() == ["pfsup"]
    assert {name.split("/")[0] for name in wheel.namelist()} == {"pfsup", info.split("/")[0]}


def test_wheel_holds_every_module_and_data_file_and_no_other(wheel: zipfile.ZipFile) -> None:
    """A file that is missing here is missing only at the user's."""
    shipped = {name.removeprefix("pfsup/") for name in wheel.namelist() if name.startswith("pfsup/")}
    rooms = ("config", "shared", "domains", "supervisor")
    there = {
        str(path.relative_to(ROOT))
        for room in rooms
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".sql", ".toml"}
    }
    assert shipped == there | {"__init__.py", "__main__.py", "py.typed"}


def test_wheel_runs_apart_from_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The command line answers, and the migration's text is found, from the unpacked wheel alone."""
    wheel.extractall(tmp_path)
    code = "import pfsup, pfsup.shared.db.migrations as m; print(pfsup.__file__, len(m.migrations()[0].body) > 10000)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "pfsup/__init__.py"), "True"]


def test_rooms_are_not_importable_by_their_bare_names() -> None:
    """The checkout on the path of nobody: `import supervisor` is PyPI's or an error."""
    for room in ("supervisor", "domains", "shared"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {room}"], cwd="/", capture_output=True, timeout=30, check=False
        )
        assert done.returncode == 1, room
