"""README's snippets, as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pfsup

README = (Path(pfsup.__file__).parent / "README.md").read_text()


def snippet(name: str) -> str:
    """The code block behind `<!-- runs: name -->`."""
    found = re.search(rf"<!-- runs: {name} -->\n\s*```\w+\n(.*?)\n\s*```", README, re.DOTALL)
    assert found is not None, f"README has no snippet called {name}"
    return textwrap.dedent(found.group(1))


def names() -> set[str]:
    """The names of all snippets that README says are run."""
    return set(re.findall(r"<!-- runs: (\w+) -->", README))


async def run_async(code: str, **names: object) -> None:
    """Run a snippet that awaits, with these names in scope."""
    scope = dict(names)
    exec(compile(f"async def snippet():\n{textwrap.indent(code, '    ')}", "README.md", "exec"), scope)
    await scope["snippet"]()  # type: ignore[operator]


def run(code: str, **names: object) -> None:
    """Run a snippet with these names in scope."""
    exec(compile(code, "README.md", "exec"), dict(names))
