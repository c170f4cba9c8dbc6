"""claim_due: due rows in the article's order, every queue its share, nobody waits for a lock."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.database import Database
from support.outbox import Claimer, column, fill, leased, stage
from support.plans import explained


def test_claim_takes_due_rows_in_the_order_of_due_time_then_id(database: Database):
    ids = stage(database, count=3)
    early = stage(database, at="2020-01-01T00:00:00Z")
    stage(database, at="2999-01-01T00:00:00Z")
    with Claimer(database) as claimer:
        assert claimer.claim() == early + ids
        assert claimer.claim() == []


def test_claim_changes_nothing_but_the_lease(database: Database):
    stage(database)
    before = column(database, "to_jsonb(async_dispatches) - '{lease_token,lease_expires_at,claimed_by}'::text[]")
    with Claimer(database) as claimer:
        claimer.claim(lease="30 s")
        (lease,) = column(database, "lease_expires_at - clock_timestamp() BETWEEN '20 s' AND '30 s'")
        assert (column(database, "lease_token"), column(database, "claimed_by")) == ([claimer.token], ["hand/1"])
    assert lease
    assert before == column(
        database, "to_jsonb(async_dispatches) - '{lease_token,lease_expires_at,claimed_by}'::text[]"
    )


def test_claim_returns_what_an_entry_needs(database: Database):
    options = '{"headers": {"trace": "t"}, "tenant": "acme", "queue": "slow"}'
    ids = stage(database, payload='{"a": 1}', options=options)
    with Claimer(database) as claimer:
        claimer.claim(inline=True)
        row = claimer.rows[0]
    assert row[:7] == (ids[0], "slow", "mail", "1", "acme", 1, '{"trace": "t"}')
    assert re.fullmatch(r"\d{10}\.\d{6}", row[7])
    assert row[8] == '{"a": 1}'
    source = claimer.summary[10]
    assert re.fullmatch(r"[0-9a-f-]{36}/1", source)


def test_claim_says_when_the_next_row_is_due_and_nothing_when_the_batch_is_full(database: Database):
    stage(database, count=2)
    stage(database, at="2999-01-01T00:00:00Z")
    with Claimer(database) as claimer:
        claimer.claim(2)
        assert claimer.summary[11] is None
        claimer.claim(2)
        assert float(claimer.summary[11] or 0) > 86400


def test_claim_of_an_empty_outbox_says_that_nothing_will_be_due(database: Database):
    with Claimer(database) as claimer:
        assert claimer.claim() == []
        assert claimer.summary[11] is None


def test_claim_does_not_report_a_due_row_that_is_locked_as_the_next_to_wait_for(database: Database):
    ids = stage(database)
    with database.superuser() as conn, Claimer(database) as claimer, conn.transaction():
        conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids)
        assert claimer.claim() == []
        assert claimer.summary[11] is None


def test_claim_passes_over_a_locked_row_without_waiting(database: Database):
    ids = stage(database, count=8)
    with database.superuser() as conn, Claimer(database) as claimer, conn.transaction():
        conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", ids[:1])
        assert claimer.claim() == ids[1:]


def test_claim_fills_its_batch_behind_locked_rows(database: Database):
    ids = stage(database, count=8)
    with database.superuser() as conn, Claimer(database) as claimer, conn.transaction():
        conn.execute("SELECT FROM pfsup.async_dispatches WHERE id = ANY(%s) FOR UPDATE", (ids[:4],))
        assert claimer.claim(4) == ids[4:]


def test_two_dispatchers_claim_each_of_eight_rows_once(database: Database):
    ids = stage(database, count=8)

    def claim_three_times(_: int) -> list[int]:
        with Claimer(database) as claimer:
            return [n for _ in range(3) for n in claimer.claim(2)]

    with ThreadPoolExecutor(4) as pool:
        claimed = [n for part in pool.map(claim_three_times, range(4)) for n in part]
    assert sorted(claimed) == ids


def test_claim_takes_a_row_again_when_its_claim_has_expired(database: Database):
    ids = stage(database)
    with Claimer(database) as claimer:
        claimer.claim()
        with database.superuser() as conn:
            conn.execute("UPDATE pfsup.async_dispatches SET lease_expires_at = clock_timestamp() - interval '1 ms'")
        assert claimer.claim() == ids


def test_claim_gives_every_queue_its_share_and_what_others_leave(database: Database):
    for queue, count in (("big", 500), ("small", 3), ("middle", 70)):
        stage(database, queue, count)
    with Claimer(database) as claimer:
        claimer.claim(100)
        assert claimer.queues["small"] == 3
        assert abs(claimer.queues["big"] - claimer.queues["middle"]) <= 2
        assert claimer.queues.total() == 100


def test_claim_gives_one_queue_the_whole_batch_when_the_others_have_nothing_due(database: Database):
    stage(database, "big", 200)
    stage(database, "later", 5, at="2999-01-01T00:00:00Z")
    with Claimer(database) as claimer:
        claimer.claim(100)
        assert claimer.queues == Counter(big=100)


def test_claim_keeps_the_order_within_each_queue_over_its_rounds(database: Database):
    for queue, count in (("a", 50), ("b", 2), ("c", 30)):
        stage(database, queue, count)
    with Claimer(database) as claimer:
        claimer.claim(60)
        for queue in "abc":
            ids = [row[0] for row in claimer.rows if row[1] == queue]
            assert ids == column(database, "id", f"queue = '{queue}'")[: len(ids)]


@pytest.mark.parametrize("rows", [20_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_a_row_of_another_queue_leaves_in_the_next_batch_however_long_the_first_queue_is(database: Database, rows: int):
    fill(database, "big", rows)
    lone = stage(database, "lone")
    with Claimer(database) as claimer:
        assert lone[0] in claimer.claim(100)


def test_claim_takes_turns_when_there_are_more_queues_than_places(database: Database):
    for n in range(12):
        stage(database, f"q{n}", 30)
    with Claimer(database) as claimer:
        assert {queue for _ in range(40) for queue in (claimer.claim(5), claimer.queues)[1]} == {
            f"q{n}" for n in range(12)
        }


def test_claim_of_the_oldest_ignores_shares(database: Database):
    late = stage(database, "a", at="2021-01-01T00:00:00Z")
    early = stage(database, "b", at="2020-01-01T00:00:00Z")
    stage(database, "a", 10)
    with Claimer(database) as claimer:
        assert claimer.claim(1, oldest=True) == early
        assert claimer.claim(1, oldest=True) == late


def test_claim_can_be_kept_to_some_queues_or_away_from_others(database: Database):
    for queue in "abc":
        stage(database, queue)
    with Claimer(database) as claimer:
        claimer.claim(closed=["a", "b"])
        assert claimer.queues == Counter(c=1)
        claimer.claim(only_queues=["b"])
        assert claimer.queues == Counter(b=1)


@pytest.mark.parametrize(("kind", "name"), [("actor", "mail"), ("queue", "slow"), ("tenant", "acme")])
def test_claim_passes_over_what_is_paused_and_takes_it_after_resume(database: Database, kind: str, name: str):
    stage(database, "mail", options='{"queue": "slow", "tenant": "acme"}')
    other = stage(database, "other", options='{"tenant": "b"}')
    with psycopg.connect(database.operate_url, autocommit=True) as operator, Claimer(database) as claimer:
        operator.execute("SELECT pfsup.pause(%s, %s, 'me', 'test')", (kind, name))
        assert claimer.claim() == other
        operator.execute("SELECT pfsup.resume(%s, %s, 'me', 'test')", (kind, name))
        assert len(claimer.claim()) == 1


def test_claim_keeps_a_queue_within_its_room(database: Database):
    stage(database, "narrow", 10)
    stage(database, "wide", 10)
    with Claimer(database) as claimer:
        claimer.mark(claimer.claim(only_queues=["narrow"], room='{"narrow": 3}'))
        assert claimer.claim(room='{"narrow": 3}') == column(database, "id", "queue = 'wide'")
        assert claimer.summary[13] is True


@pytest.mark.parametrize("bad", [{"batch": 0}, {"batch": 10_001}, {"lease": "2 hours"}])
def test_claim_refuses_senseless_limits(database: Database, bad: dict[str, Any]):
    with Claimer(database) as claimer, pytest.raises(psycopg.Error) as caught:
        claimer.claim(**bad)
    assert caught.value.sqlstate == "PF400"


@pytest.mark.parametrize("statistics", ["stale", "fresh"])
def test_claim_walks_the_index_without_sort_or_sequential_scan(database: Database, statistics: str):
    """Statistics of an empty table are what a queue that was just filled has."""
    with database.superuser() as conn:
        conn.execute("ANALYZE pfsup.async_dispatches")
        fill(database, "mail", 100_000)
        if statistics == "fresh":
            conn.execute("ANALYZE pfsup.async_dispatches")
    plan = explained(database, "claim_due", ("00000000-0000-0000-0000-000000000001", "x/1", "30 s", 100))
    picking = next(part for part in plan.split("duration:") if "CTE picked" in part)
    pick, _, rest = picking.partition("CTE picked")[2].partition("CTE claimed")
    assert "Index Scan using async_dispatches_due" in pick
    assert "LockRows" in pick
    assert "Sort" not in pick
    assert "Index Scan using async_dispatches_pkey" in rest
    assert "Seq Scan on async_dispatches" not in plan
    assert "Bitmap" not in plan


def test_mark_finds_its_rows_by_the_primary_key(database: Database):
    fill(database, "mail", 2_000)
    with Claimer(database) as claimer:
        ids = claimer.claim(100)
        plan = explained(database, "mark_sent", ([claimer.token] * 100, ids, ["s 1-1"] * 100))
    assert "Index Scan using async_dispatches_pkey" in plan
    assert "Seq Scan on async_dispatches" not in plan
    assert leased(database) == 0
