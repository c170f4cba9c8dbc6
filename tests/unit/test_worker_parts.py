"""The worker's pure parts: verdicts, messages, and what is settled after a run."""

from __future__ import annotations

import asyncio
import re
from importlib.resources import files
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.config.errors import ProtocolError
from pfsup.shared.worker.hold import Hold, Loss
from pfsup.shared.worker.message import parse
from pfsup.shared.worker.outcomes import Late, Retry, Settlement, Snooze, settlement_of
from pfsup.shared.worker.runner import after_run
from pfsup.shared.worker.verdicts import VERDICTS, Fate, fate_of

RAN_TOO_LONG = "cancelled: it ran longer than the actor's max_run"
ENTRY: dict[object, object] = {b"v": b"1", b"dispatch_id": b"7", b"actor": b"paint", b"source": b"i/1", b"new": b"?"}


def test_every_verdict_that_begin_work_documents_has_a_fate() -> None:
    text = files("pfsup.shared.sql.m0001_outbox").joinpath("40_work.sql").read_text()
    table = text.partition("--   verdict ")[2].partition("-- A row is taken up")[0]
    assert set(re.findall(r"^--   ([a-z_]+) {2,}", table, re.MULTILINE)) == set(VERDICTS)


def test_verdict_of_a_newer_schema_leaves_the_message_alone() -> None:
    assert fate_of("maybe") is Fate.LEAVE


def test_entry_is_a_message_and_fields_that_are_not_known_are_ignored() -> None:
    message = parse("s", "1-2", ENTRY)
    assert (message.dispatch_id, message.actor, message.source, message.sink_ref) == (7, "paint", "i/1", "s 1-2")


@pytest.mark.parametrize(
    "change",
    [{b"v": b"2"}, {b"dispatch_id": b""}, {b"dispatch_id": b"-1"}, {b"dispatch_id": "٣".encode()},
     {b"dispatch_id": b"9" * 19}, {b"dispatch_id": b"\xff"}, {b"actor": b""}],
)  # fmt: skip
def test_entry_that_is_not_ours_is_refused(change: dict[object, object]) -> None:
    with pytest.raises(ProtocolError, match="cannot read an entry"):
        parse("s", "1-2", ENTRY | change)


@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=30), max_size=12))
def test_no_entry_raises_anything_but_the_refusal(fields: dict[object, object]) -> None:
    try:
        parse("s", "1-2", fields)
    except ProtocolError:
        return


@given(st.text())
def test_any_error_text_reaches_the_database_on_one_line(text: str) -> None:
    error = settlement_of(ValueError(text)).error or ""
    assert len(error) <= 2000
    assert error.isprintable()
    assert error.encode()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_error_that_cannot_be_printed_costs_the_run_nothing() -> None:
    assert settlement_of(Unprintable()).error == "Unprintable: (its text cannot be read)"


@pytest.mark.parametrize(("asked", "told"), [(5, 5.0), (-1, 0.0), (1e12, 366 * 86400.0), (float("nan"), None)])
def test_wait_is_one_that_settle_takes(asked: float, told: float | None) -> None:
    assert settlement_of(Retry(asked)).retry_in_s == told
    assert settlement_of(Snooze(asked)).retry_in_s == told


def lost(why: Loss | None, *effects: str) -> Hold:
    hold = Hold(1, uuid4())
    hold.open_effects.update(effects)
    if why:
        hold.lose(why)
    return hold


@pytest.mark.parametrize(
    ("hold", "settlement"),
    [
        (lost("late"), None),
        (lost("cancel"), None),
        (lost("drain"), Settlement(outcome="snooze", retry_in_s=0.0)),
        (lost("drain", "charge"), None),
        (lost("deadline"), Settlement(outcome="retry", error=RAN_TOO_LONG)),
        (lost(None), Settlement(outcome="retry", error="CancelledError: the function was cancelled from within")),
    ],
    ids=["late", "cancel", "drain", "drain in an effect", "deadline", "from within"],
)
def test_cancelled_run_is_settled_by_why_it_was_cancelled(hold: Hold, settlement: Settlement | None) -> None:
    assert after_run(hold, asyncio.CancelledError()) == settlement


def test_effect_that_was_refused_as_late_claims_no_result() -> None:
    settlement = after_run(lost(None), Late("cannot begin effect"))
    assert settlement is not None
    assert settlement.outcome == "retry"


def test_result_that_was_refused_as_late_is_claimed_once_more() -> None:
    assert after_run(lost(None), Late("cannot settle", claimed=True)) == Settlement(outcome="consumed")


def test_run_that_is_settled_is_not_settled_again() -> None:
    hold = lost("late")
    hold.settled = True
    assert after_run(hold, None) is None
    assert after_run(hold, ValueError()) is None


def test_first_reason_to_stop_counts_and_is_told_once() -> None:
    hold, told = Hold(1, uuid4()), list[str]()
    hold.when_lost(lambda: told.append("stop"))
    hold.lose("deadline")
    hold.lose("late")
    assert (hold.lost, told) == ("deadline", ["stop"])


def test_run_that_was_lost_before_it_could_listen_is_told_too() -> None:
    hold, told = lost("drain"), list[str]()
    hold.when_lost(lambda: told.append("stop"))
    assert told == ["stop"]
