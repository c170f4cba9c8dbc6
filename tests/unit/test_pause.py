"""pause_after_dispatch: a full batch is followed by the next one, anything else by the nearest reason to look."""

from __future__ import annotations

import pytest
from pfsup.domains.pause import LIMITED_S, pause_after_dispatch


def test_pause_is_none_after_a_full_batch_whatever_the_interval():
    assert pause_after_dispatch(full=True, wait_s=None, scan_interval_s=3600.0) == 0.0


@pytest.mark.parametrize(
    ("wait_s", "retry_in_s", "limited", "wanted"),
    [
        (None, None, False, 30.0),
        (0.3, None, False, 0.3),
        (90.0, None, False, 30.0),
        (0.3, 0.1, False, 0.1),
        (None, None, True, LIMITED_S),
        (-1.0, None, False, 0.0),
    ],
)
def test_pause_ends_at_the_nearest_reason_to_look(
    wait_s: float | None, retry_in_s: float | None, limited: bool, wanted: float
):
    pause_s = pause_after_dispatch(
        full=False, wait_s=wait_s, scan_interval_s=30.0, retry_in_s=retry_in_s, limited=limited
    )
    assert pause_s == wanted
