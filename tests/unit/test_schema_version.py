"""check_version: dispatch works with the schema it speaks, and says what to do about any other."""

from __future__ import annotations

import pytest
from pfsup.config.errors import SchemaError
from pfsup.shared.db.migrate import LATEST
from pfsup.shared.db.version import check_version


def test_version_that_this_program_speaks_is_accepted():
    check_version(LATEST, "pfsup")


@pytest.mark.parametrize(
    ("found", "said"),
    [(None, "run: pfsup migrate"), (LATEST - 1, "run: pfsup migrate"), (LATEST + 1, "install the newer pfsup")],
)
def test_any_other_version_is_refused_with_the_next_step(found: int | None, said: str):
    with pytest.raises(SchemaError, match=said):
        check_version(found, "pfsup")
