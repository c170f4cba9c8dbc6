"""README and ARCHITECTURE hold what code prints, and code holds what they say."""

from __future__ import annotations

from pathlib import Path

import pfsup
import pytest
from pfsup.config import example
from pfsup.shared import life
from pfsup.supervisor.parent import table

ARCHITECTURE = (Path(pfsup.__file__).parent / "ARCHITECTURE.md").read_text()


def test_every_status_has_a_row_and_is_reached() -> None:
    """The life of an envelope names every status, and nothing is unreachable but by staging or a person's hold."""
    reached = {after for row in life.LIFE.values() for after in row.values()}
    assert set(life.LIFE) == set(life.Status)
    assert set(life.Status) - reached == {life.Status.HELD}  # a restore or a brake writes it, in a later version


def test_every_live_status_can_end_and_only_live_ones_go_on() -> None:
    """A delivery key is never blocked for ever."""
    ends = set(life.Status) - life.LIVE
    assert all(life.LIFE[status] == {} for status in ends)
    reach = {status: set(life.LIFE[status].values()) for status in life.LIVE}
    for _ in life.LIVE:
        reach = {s: r | {a for b in r for a in life.LIFE[b].values()} for s, r in reach.items()}
    assert all(reachable & ends for reachable in reach.values())


@pytest.mark.parametrize("drawing", [life.drawing(), table.drawing()], ids=["envelope", "child"])
def test_drawing_in_architecture_is_the_one_the_table_prints(drawing: str) -> None:
    """Drawings that nothing checks go stale."""
    assert drawing in ARCHITECTURE


def test_configuration_table_in_readme_is_the_one_the_settings_print() -> None:
    """Keys, defaults, limits and sentences are written once, in config/values.py."""
    readme = (Path(pfsup.__file__).parent / "README.md").read_text()
    assert example.table().strip() in readme
