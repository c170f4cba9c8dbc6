"""README's two commands on a machine that has bash and Python and nothing else of ours."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Generator
from pathlib import Path
from tempfile import mkdtemp

import pfsup
import pytest

ROOT = Path(pfsup.__file__).parent
NOBODY = 65534


@pytest.fixture
def checkout() -> Generator[Path]:
    """A copy of the checkout without anything that was built, which everybody may read."""
    place = Path(mkdtemp(prefix="pfs-", dir="/tmp"))
    place.chmod(0o755)
    unbuilt = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "*.egg-info", ".coverage*", ".hypothesis")
    shutil.copytree(ROOT, place / "checkout", ignore=unbuilt)
    yield place / "checkout"
    for path in place.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    shutil.rmtree(place)


def run(checkout: Path, *words: str, user: int | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script from another directory, as another user if asked."""
    return subprocess.run(
        [str(checkout / "scripts" / words[0]), *words[1:]],
        cwd="/",
        env={key: value for key, value in os.environ.items() if not key.startswith("PFSUP_")} | environ,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_that_cannot_make_environments_is_told_in_two_lines(checkout: Path) -> None:
    """Debian without python3-venv exits 1 and leaves half an environment behind."""
    python = checkout / "python3"
    python.write_text(
        '#!/bin/bash\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; exit 1; fi\nexec python3 "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    done = run(checkout, "demo", PFSUP_PYTHON=str(python))
    assert done.returncode == 69
    assert "cannot make a virtual environment" in done.stderr
    assert "mend it with: apt-get install python3-venv" in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_demo_runs_twice_from_a_clean_checkout_and_leaves_nothing(checkout: Path, user: int | None) -> None:
    """For nobody the checkout is read-only, so a copy in the cache is used; the second run builds nothing."""
    cache = checkout.parent / "cache"
    cache.mkdir()
    if user is not None:
        os.chown(cache, user, user)
    for turn in (1, 2):
        done = run(checkout, "demo", "--seconds", "2", "--json", user=user, XDG_CACHE_HOME=str(cache))
        assert done.returncode == 0, done.stderr
        proof = json.loads(done.stdout.splitlines()[-1])
        assert (proof["lost"], proof["twice"]) == (0, 0)
        assert ("building .venv" in done.stderr) == (turn == 1)
    assert (checkout / ".venv").exists() == (user is None)


@pytest.mark.long
def test_half_an_environment_is_built_again(checkout: Path) -> None:
    """The stamp is written last: a build that was killed has none."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    done = run(checkout, "test", "unit", "-n0", "-k", "test_backoff")
    assert done.returncode == 0, done.stderr
    assert "building .venv" in done.stderr
