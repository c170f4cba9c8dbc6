"""shared/figures.py: what a child may report about itself."""

from __future__ import annotations

import json

import pytest
from pfsup.shared.figures import DEPTH, LIMIT_BYTES, bounded
from pfsup.shared.frames import decode, encode


def test_plain_figures_are_left_as_they_are():
    figures = {"sent": 7, "lag_s": 0.5, "streams": {"a": None}}
    assert bounded(figures) == figures


def test_values_that_json_does_not_know_are_shown_as_text():
    assert bounded({"queues": frozenset({"a"})}) == {"queues": "frozenset({'a'})"}


TOWER = json.loads("[" * DEPTH + "]" * DEPTH)


@pytest.mark.parametrize("odd", ["x" * LIMIT_BYTES, float("inf"), "\udcff", -(2**64), TOWER])
def test_others_are_left_out_with_the_reason_and_the_rest_of_a_status_stays_readable(odd: object):
    shown = bounded({"sent": 7, "odd": odd})
    assert shown["left_out"].startswith("cannot ")
    assert decode(encode({"children": [{"figures": shown}]})) is not None
