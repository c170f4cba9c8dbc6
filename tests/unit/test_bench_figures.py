"""scripts/bench judges by the median ratio of neighbours, and says how far the pairs lie apart."""

from __future__ import annotations

import pytest
from benchlib.__main__ import exit_code
from benchlib.figures import Pair, Target, judge, pairs, sequence
from benchlib.report import Result, rounded

AT_MOST_TWICE = Target(figure="a time", limit=2.0, at_most=True)
AT_LEAST_HALF = Target(figure="a rate", limit=0.5, at_most=False)


def test_sequence_is_a_b_b_a_each_time():
    assert sequence(2) == ["ours", "bare", "bare", "ours", "ours", "bare", "bare", "ours"]


def test_pairs_are_neighbours_whatever_their_order():
    assert pairs(sequence(1), [1.0, 2.0, 4.0, 3.0]) == [Pair(ours=1.0, bare=2.0), Pair(ours=3.0, bare=4.0)]


def test_pairs_of_the_same_side_are_refused():
    with pytest.raises(ValueError, match="both are ours"):
        pairs(["ours", "ours"], [1.0, 2.0])


def test_pairs_of_an_incomplete_sequence_are_refused():
    with pytest.raises(ValueError, match="3 values of 4 runs"):
        pairs(sequence(1), [1.0, 2.0, 3.0])


def test_ratio_to_nothing_is_infinite():
    assert Pair(ours=1.0, bare=0.0).ratio == float("inf")


def test_verdict_takes_the_median_and_shows_the_spread():
    verdict = judge(AT_MOST_TWICE, sequence(2), [1.0, 1.0, 1.0, 9.0, 2.0, 1.0, 1.0, 1.5])
    assert (verdict.ratio, verdict.spread, verdict.met) == (1.75, (1.0, 9.0), True)


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [
        (AT_MOST_TWICE, 2.0, True),
        (AT_MOST_TWICE, 2.01, False),
        (AT_LEAST_HALF, 0.5, True),
        (AT_LEAST_HALF, 0.49, False),
    ],
)
def test_target_is_kept_at_its_limit_and_missed_beyond(target: Target, ratio: float, *, met: bool):
    assert target.met(ratio) is met


def result_of(values: list[float]) -> Result:
    """A result whose only verdict is on `values`."""
    order = sequence(1)
    return Result(
        name="sample",
        unit="ms",
        order=order,
        runs=[{"p50": value} for value in values],
        verdicts=[judge(AT_MOST_TWICE, order, values)],
        information={"told": {"a": 1.23456}},
    )


def test_result_is_missed_when_one_target_is_missed():
    assert result_of([1.0, 1.0, 1.0, 1.0]).met
    assert not result_of([3.0, 1.0, 1.0, 3.0]).met


def test_check_alone_makes_a_missed_target_a_failure():
    missed, met = result_of([3.0, 1.0, 1.0, 3.0]), result_of([1.0, 1.0, 1.0, 1.0])
    assert [exit_code(missed, check=True), exit_code(missed, check=False), exit_code(met, check=True)] == [1, 0, 0]


def test_json_holds_environment_repetitions_runs_ratio_and_spread():
    told = result_of([1.0, 1.0, 2.0, 3.0]).as_json({"cores": 2})
    assert told["schema"] == 1
    assert told["environment"] == {"cores": 2}
    assert told["repetitions"] == 1
    assert told["runs"] == [
        {"side": "ours", "p50": 1.0},
        {"side": "bare", "p50": 1.0},
        {"side": "bare", "p50": 2.0},
        {"side": "ours", "p50": 3.0},
    ]
    assert told["verdicts"] == [
        {
            "figure": "a time",
            "pairs": [{"ours": 1.0, "bare": 1.0, "ratio": 1.0}, {"ours": 3.0, "bare": 2.0, "ratio": 1.5}],
            "ratio": 1.25,
            "spread": [1.0, 1.5],
            "target": "<= 2 x",
            "met": True,
        }
    ]
    assert told["information"] == {"told": {"a": 1.235}}


def test_lines_end_with_the_verdict():
    assert result_of([3.0, 1.0, 1.0, 3.0]).as_lines({"cores": 2})[-1] == (
        "MISSED a time: 3.00 x (spread 3.00 to 3.00; pairs 3.00 3.00), wanted <= 2 x"
    )


def test_rounding_leaves_text_and_whole_numbers_alone():
    assert rounded({"a": [1, "x", 0.12349], "b": True}) == {"a": [1, "x", 0.123], "b": True}
