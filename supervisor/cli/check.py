"""`pfsup check`: everything that would keep pfsup from working, at once, each with the next step."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ...config.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, EXIT_TRY_LATER, ConfigError
from .common import complain, config_option, json_option, load, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ...config.load import Loaded
    from .findings import Finding


@click.command
@config_option
@json_option
def command(*, config_path: str | None, as_json: bool) -> None:
    """Check the configuration, then the database and Redis that it names.

    Ends with 0 when pfsup can work (warnings included), 78 when the configuration cannot be used, 1 when something
    must be mended, 75 when a server is only away.
    """
    try:
        loaded = load(config_path)
    except ConfigError as error:
        if as_json:
            problems = [problem._asdict() for problem in error.details]
            print_json({"problems": problems, "findings": [], "exit_code": EXIT_CONFIG})
            sys.exit(EXIT_CONFIG)
        sys.exit(complain(error))
    found: list[Finding] = []
    for finding in _all(loaded):
        found.append(finding)
        if not as_json:
            click.echo(str(finding))
    code = exit_code(found)
    if as_json:
        print_json({"problems": [], "findings": [asdict(finding) for finding in found], "exit_code": code})
    sys.exit(code)


def _all(loaded: Loaded) -> Iterator[Finding]:
    """Look at everything, in the order in which a person would mend it."""
    from . import look_broker, look_database, look_files

    yield from look_files.look(loaded)
    yield from look_database.look(loaded.settings)
    yield from look_broker.look(loaded.settings.redis)


def exit_code(findings: Iterable[Finding]) -> int:
    """The worst finding decides: what a person must mend before what may come back by itself."""
    states = {finding.state for finding in findings}
    if "failed" in states:
        return EXIT_FAILED
    return EXIT_TRY_LATER if "away" in states else EXIT_OK
