"""judge: whose fault a failed send is. The backlog of a broken stream or broker is never burnt."""

from __future__ import annotations

import pytest
import redis.exceptions as broker
from hypothesis import given
from hypothesis import strategies as st
from pfsup.domains.dispatch.verdict import judge
from pfsup.shared.sinks.faults import EntryTooLarge, Fault, fault_of
from pfsup.shared.sinks.redis_stream import Envelope


def row(number: int, queue: str = "mail") -> Envelope:
    return Envelope(number, queue, "mail", "a", None, 1, "{}", "0", None)


WRONGTYPE = broker.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
LOST = broker.ConnectionError("Connection closed by server.")
TIMEOUT = broker.TimeoutError("no answer within 2 s")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (broker.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), Fault.BROKER),
        (broker.ReadOnlyError("You can't write against a read only replica."), Fault.BROKER),
        (broker.BusyLoadingError("Redis is loading the dataset in memory"), Fault.BROKER),
        (broker.AuthenticationError("Authentication required."), Fault.BROKER),
        (broker.ResponseError("CLUSTERDOWN The cluster is down"), Fault.BROKER),
        (broker.ResponseError("MASTERDOWN Link with MASTER is down"), Fault.BROKER),
        (broker.ResponseError("BUSY Redis is busy running a script."), Fault.BROKER),
        (broker.ResponseError("MISCONF Redis is configured to save RDB snapshots"), Fault.BROKER),
        (broker.ResponseError("NOREPLICAS Not enough good replicas to write."), Fault.BROKER),
        (broker.ResponseError("WRONGPASS invalid username-password pair"), Fault.BROKER),
        (broker.ResponseError("max number of clients reached"), Fault.BROKER),
        (LOST, Fault.UNANSWERED),
        (TIMEOUT, Fault.UNANSWERED),
        (ConnectionResetError("reset"), Fault.UNANSWERED),
        (WRONGTYPE, Fault.REFUSED),
        (broker.NoPermissionError("this user has no permissions to access a key"), Fault.REFUSED),
        (broker.ResponseError("ERR something nobody knows"), Fault.REFUSED),
        (EntryTooLarge("cannot send"), Fault.ROW),
    ],
)
def test_fault_of_sorts_what_redis_says(error: Exception, fault: Fault):
    assert fault_of(error) is fault


def test_judge_charges_the_one_refused_row_whose_neighbour_got_through():
    verdict = judge([row(1), row(2), row(3)], ["1-1", WRONGTYPE, "1-2"])
    assert [r.id for r, _ in verdict.sent] == [1, 3]
    assert [r.id for r, _ in verdict.refused] == [2]
    assert (verdict.returned, verdict.broker, verdict.streams) == ([], None, {})


def test_judge_blames_the_stream_when_nothing_of_it_got_through():
    verdict = judge([row(1, "bad"), row(2, "bad"), row(3)], [WRONGTYPE, WRONGTYPE, "1-1"])
    assert verdict.refused == []
    assert [r.id for r in verdict.returned] == [1, 2]
    assert set(verdict.streams) == {"bad"}
    assert verdict.broker is None


def test_judge_keeps_what_was_answered_before_the_connection_was_lost():
    verdict = judge([row(1), row(2), row(3)], ["1-1", LOST, LOST])
    assert [r.id for r, _ in verdict.sent] == [1]
    assert [r.id for r in verdict.returned] == [2, 3]
    assert verdict.broker is LOST
    assert verdict.hung_up_on is None


def test_judge_charges_a_lone_row_only_when_the_connection_is_lost_on_it_again():
    first = judge([row(1)], [LOST])
    assert (first.refused, first.hung_up_on) == ([], 1)
    again = judge([row(1)], [LOST], suspect=1)
    assert ([r.id for r, _ in again.refused], again.broker) == ([1], None)
    other = judge([row(2)], [LOST], suspect=1)
    assert (other.refused, other.hung_up_on) == ([], 2)


def test_judge_never_charges_a_row_for_a_timeout():
    verdict = judge([row(1)], [TIMEOUT], suspect=1)
    assert (verdict.refused, verdict.hung_up_on, verdict.broker) == ([], None, TIMEOUT)


def test_judge_always_charges_an_entry_that_is_too_large():
    verdict = judge([row(1)], [EntryTooLarge("cannot send: too large")])
    assert [r.id for r, _ in verdict.refused] == [1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.sampled_from(["1-1", WRONGTYPE, LOST, TIMEOUT, broker.OutOfMemoryError("x"), EntryTooLarge("x")]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.none() | st.integers(0, 12),
)
def test_judge_puts_every_row_in_exactly_one_place(answers: list[tuple[str, str | Exception]], suspect: int | None):
    rows = [row(n, queue) for n, (queue, _) in enumerate(answers)]
    verdict = judge(rows, [answer for _, answer in answers], suspect=suspect)
    places = [r.id for r, _ in verdict.sent] + [r.id for r, _ in verdict.refused] + [r.id for r in verdict.returned]
    assert sorted(places) == list(range(len(rows)))
