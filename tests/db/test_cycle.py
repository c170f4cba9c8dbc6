"""The recovery cycle, on deliveries: bounded, never blocked by what cannot move, and each candidate on its own."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from pfsup.domains.decisions import Decision
from support.database import Database
from support.gates import Gates
from support.recovery import domain
from support.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Generator


def stuck(rows: Rows, count: int, *, envelope: str | None = None, status: str = "queued") -> list[str]:
    """Deliveries that need recovery, the oldest first."""
    since = "progress_at" if status == "running" else "created_at"
    return [rows.delivery(status=status, envelope=envelope, **{since: f"ago {1000 - n} minutes"}) for n in range(count)]


@contextmanager
def locked(database: Database, jobs: list[str]) -> Generator[None]:
    """Somebody's long transaction holds these rows."""
    with psycopg.connect(database.url) as holder:
        holder.execute("SELECT FROM productflow.delivery_jobs WHERE id = ANY(%s) FOR UPDATE", [jobs])
        yield


def refuse(rows: Rows, jobs: list[str]) -> None:
    """A trigger of the application raises when these rows are written."""
    rows.all("CREATE TABLE productflow.poisoned (id text)")
    rows.all("INSERT INTO productflow.poisoned SELECT unnest(%s::text[])", jobs)
    rows.all(
        "CREATE FUNCTION productflow.poison() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN IF EXISTS (SELECT FROM productflow.poisoned p WHERE p.id = new.id)"
        " THEN RAISE EXCEPTION 'this row is poisoned'; END IF; RETURN new; END $$"
    )
    rows.all(
        "CREATE TRIGGER poison BEFORE UPDATE ON productflow.delivery_jobs"
        " FOR EACH ROW EXECUTE FUNCTION productflow.poison()"
    )


def staged(rows: Rows, jobs: list[str]) -> list[str]:
    """Which of these have a live envelope."""
    keys = [row.delivery_key for row in rows.all("SELECT delivery_key FROM pfsup.live_envelopes")]
    return [job for job in jobs if f"delivery:{job}" in keys]


async def test_batch_is_the_oldest_and_has_more_says_that_more_were_free(productflow: Database, rows: Rows):
    jobs = stuck(rows, 7)
    async with domain(productflow, "delivery", batch_size=5) as delivery:
        first = await delivery.run()
        assert staged(rows, jobs) == jobs[:5]
        assert (first.examined, first.has_more, first.waiting) == (5, True, 7)
        second = await delivery.run()
    assert (second.examined, second.has_more) == (2, False)
    assert staged(rows, jobs) == jobs
    assert 59_000 < first.oldest_s < 61_000


async def test_25_locked_rows_do_not_hide_the_26th(productflow: Database, rows: Rows):
    """Seed 000, section 6. After their release they follow in the next cycle."""
    jobs = stuck(rows, 26)
    async with domain(productflow, "delivery") as delivery:
        with locked(productflow, jobs[:25]):
            report = await delivery.run()
            assert staged(rows, jobs) == jobs[25:]
            assert report.waiting == 26, "locked rows are counted"
            assert report.oldest_s > 59_000, "and so is the age of the oldest"
        await delivery.run()
    assert staged(rows, jobs) == jobs


async def test_25_rows_that_raise_do_not_hide_the_26th(productflow: Database, rows: Rows):
    jobs = stuck(rows, 26)
    refuse(rows, jobs[:25])
    async with domain(productflow, "delivery") as delivery:
        first, second = await delivery.run(), await delivery.run()
    assert (len(first.errors), len(second.errors)) == (25, 0)
    assert staged(rows, jobs) == jobs[25:]
    line = rows.ledger("delivery", jobs[0])
    assert line is not None
    assert (line.last_decision, line.checks) == ("error", 1)
    assert "this row is poisoned" in line.last_reason


async def test_25_rows_that_are_still_running_do_not_hide_the_26th(productflow: Database, rows: Rows):
    jobs = [*stuck(rows, 25, envelope="lost", status="running"), rows.delivery(status="queued")]
    async with domain(productflow, "delivery") as delivery:
        first, second = await delivery.run(), await delivery.run()
    assert first.decisions == {Decision.STILL_RUNNING: 25}
    assert second.decisions == {Decision.REDISPATCH: 1}
    assert rows.envelope(f"delivery:{jobs[25]}").status == "pending"


async def test_no_number_of_rows_that_raise_hides_the_one_behind_them(productflow: Database, rows: Rows):
    """Sleep is bounded, so of thousands a batch is always awake: every other cycle begins where one left off."""
    jobs = stuck(rows, 61)
    refuse(rows, jobs[:60])
    async with domain(productflow, "delivery", batch_size=5) as delivery:
        for _ in range(26):
            await delivery.run()
            rows.awake()
    assert staged(rows, jobs) == jobs[60:]


async def test_one_poisoned_row_leaves_its_neighbours_alone(productflow: Database, rows: Rows):
    jobs = stuck(rows, 5)
    refuse(rows, [jobs[2]])
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert (report.examined, len(report.errors)) == (4, 1)
    assert staged(rows, jobs) == [jobs[0], jobs[1], jobs[3], jobs[4]]
    assert rows.row("delivery_jobs", jobs[2]).status == "queued"


@pytest.mark.parametrize("fault", ["PERFORM FROM gone", "RAISE insufficient_privilege", "PERFORM gone()"])
async def test_row_whose_trigger_misses_a_table_or_a_right_hides_nobody(productflow: Database, rows: Rows, fault: str):
    """The server names such a fault as it names a vanished table of the domain's: the batch goes on all the same."""
    jobs = stuck(rows, 3)
    refuse(rows, jobs[:1])
    rows.all(
        "CREATE OR REPLACE FUNCTION productflow.poison() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN IF EXISTS (SELECT FROM productflow.poisoned p WHERE p.id = new.id)"
        f" THEN {fault}; END IF; RETURN new; END $$"
    )
    async with domain(productflow, "delivery") as delivery:
        report = await delivery.run()
    assert (report.examined, len(report.errors)) == (2, 1)
    assert staged(rows, jobs) == jobs[1:]
    line = rows.ledger("delivery", jobs[0])
    assert line is not None
    assert line.last_decision == "error"


async def test_waits_of_what_fails_double_to_half_of_the_stale_threshold(productflow: Database, rows: Rows):
    (job,) = stuck(rows, 1)
    refuse(rows, [job])
    waits: list[float] = []
    async with domain(productflow, "delivery", interval=10.0, stale_after=400.0) as delivery:
        for _ in range(7):
            await delivery.run()
            line = rows.ledger("delivery", job)
            assert line is not None
            waits.append(round((line.next_check_at - line.updated_at).total_seconds()))
            rows.awake()
    assert waits == [10, 20, 40, 80, 160, 200, 200]


async def test_handed_out_candidates_sleep_before_the_first_is_judged(productflow: Database, rows: Rows):
    """A candidate that kills or hangs its judge must not come first again after the restart."""
    jobs = stuck(rows, 3)
    gates = Gates()
    gates.hold("recheck")
    async with domain(productflow, "delivery", points=gates) as delivery:
        cycle = asyncio.create_task(delivery.run())
        await gates.arrival("recheck")
        lines = [rows.ledger("delivery", job) for job in jobs]
        cycle.cancel()
        await asyncio.gather(cycle, return_exceptions=True)
    assert [line and line.checks for line in lines] == [1, 1, 1]
    newer = rows.delivery(status="queued")
    async with domain(productflow, "delivery") as successor:
        await successor.run()
    assert staged(rows, [*jobs, newer]) == [newer]


async def test_row_locked_when_it_is_judged_stays_in_front_twice_then_sleeps(productflow: Database, rows: Rows):
    (job,) = stuck(rows, 1)
    gates = Gates()
    asleep: list[bool] = []
    async with domain(productflow, "delivery", points=gates) as delivery:
        for turn in range(1, 4):
            gates.hold("recheck")
            cycle = asyncio.create_task(delivery.run())
            await gates.arrival("recheck", turn)
            with locked(productflow, [job]):
                gates.open("recheck")
                assert (await cycle).locked == 1
            line = rows.one(
                "SELECT next_check_at > clock_timestamp() AS asleep FROM pfsup.recovery WHERE candidate_id = %s", job
            )
            asleep.append(line.asleep)
    assert asleep == [False, False, True]


@pytest.mark.parametrize(
    ("change", "decision"),
    [
        ("status = 'succeeded', finished_at = clock_timestamp()", Decision.MOVED_ON),
        ("status = 'cancelled', finished_at = clock_timestamp()", Decision.MOVED_ON),
        ("status = 'running', attempt_id = 'a2', progress_at = clock_timestamp()", Decision.STILL_RUNNING),
    ],
)
async def test_row_that_changed_between_finding_and_judging_is_left_alone(
    productflow: Database, rows: Rows, change: str, decision: Decision
):
    """Finished, cancelled, or begun again: the candidate list is no command."""
    (job,) = stuck(rows, 1)
    gates = Gates()
    gates.hold("recheck")
    async with domain(productflow, "delivery", points=gates) as delivery:
        cycle = asyncio.create_task(delivery.run())
        await gates.arrival("recheck")
        rows.all(f"UPDATE productflow.delivery_jobs SET {change} WHERE id = %s", job)
        before = rows.row("delivery_jobs", job)
        gates.open("recheck")
        report = await cycle
    assert report.decisions == {decision: 1}
    assert rows.row("delivery_jobs", job) == before
    assert staged(rows, [job]) == []


async def test_good_end_lets_past_recoveries_no_longer_count(productflow: Database, rows: Rows):
    (job,) = stuck(rows, 1)
    rows.all("INSERT INTO pfsup.recovery_ledger VALUES ('delivery', %s, 4, 4, '-infinity')", job)
    gates = Gates()
    gates.hold("recheck")
    async with domain(productflow, "delivery", points=gates) as delivery:
        cycle = asyncio.create_task(delivery.run())
        await gates.arrival("recheck")
        rows.all("UPDATE productflow.delivery_jobs SET status = 'succeeded' WHERE id = %s", job)
        gates.open("recheck")
        await cycle
    assert rows.ledger("delivery", job) is None


async def test_two_supervisors_on_one_database_take_each_row_once(productflow: Database, rows: Rows):
    jobs = stuck(rows, 40)
    async with (
        domain(productflow, "delivery", batch_size=40) as one,
        domain(productflow, "delivery", batch_size=40) as two,
    ):
        reports = await asyncio.gather(one.run(), two.run())
    assert staged(rows, jobs) == jobs
    assert rows.one("SELECT count(*) FROM pfsup.async_dispatches").count == 40
    assert sum(report.decisions[Decision.REDISPATCH] for report in reports) == 40
    assert not any(report.errors for report in reports)


async def test_rows_that_merely_wait_are_walked_in_pages_and_hide_nothing(productflow: Database, rows: Rows):
    """300 queued jobs whose messages wait lie in front of a stuck one: no candidate, no ledger line, a bounded look."""
    rows.all(
        "INSERT INTO productflow.delivery_jobs (id, created_at)"
        " SELECT n::text, clock_timestamp() - interval '9 hours' FROM generate_series(1, 300) AS n"
    )
    rows.all("SELECT pfsup.stage('delivery', n::text, NULL, NULL, 'delivery:' || n) FROM generate_series(1, 300) AS n")
    (job,) = stuck(rows, 1)
    async with domain(productflow, "delivery", batch_size=1) as delivery:
        report = await delivery.run()
    assert staged(rows, [job]) == [job]
    assert (report.examined, report.waiting) == (1, 1)
    assert report.looked_at == 301
    assert rows.one("SELECT count(*) FROM pfsup.recovery").count == 1


async def test_walk_that_is_cut_off_goes_on_in_the_next_cycle(
    productflow: Database, rows: Rows, monkeypatch: pytest.MonkeyPatch
):
    """A cycle looks at a bounded number of rows, whatever waits in front."""
    monkeypatch.setattr("pfsup.domains.cycle.LOOKED_A_CYCLE", 100)
    rows.all(
        "INSERT INTO productflow.delivery_jobs (id, created_at)"
        " SELECT n::text, clock_timestamp() - interval '9 hours' FROM generate_series(1, 300) AS n"
    )
    rows.all("SELECT pfsup.stage('delivery', n::text, NULL, NULL, 'delivery:' || n) FROM generate_series(1, 300) AS n")
    (job,) = [rows.delivery(status="queued")]
    cycles = 0
    async with domain(productflow, "delivery", batch_size=1) as delivery:
        while not staged(rows, [job]):
            report = await delivery.run()
            cycles += 1
            assert report.looked_at <= 200
    assert cycles == 2
    older = rows.delivery(status="queued", created_at="ago 10 hours")
    async with domain(productflow, "delivery", batch_size=1) as delivery:
        await delivery.run()
    assert staged(rows, [older]) == [older], "from the end it begins with the oldest again"


async def test_drain_is_checked_before_every_candidate(productflow: Database, rows: Rows):
    jobs = stuck(rows, 3)
    gates = Gates()
    gates.hold("recheck")
    async with domain(productflow, "delivery", points=gates) as delivery:
        cycle = asyncio.create_task(delivery.run())
        await gates.arrival("recheck")
        delivery.drain.request(30)
        gates.open("recheck")
        report = await cycle
    assert (report.examined, report.complete) == (1, False)
    assert staged(rows, jobs) == jobs[:1]


async def test_observing_domain_with_a_readers_rights_decides_and_writes_nothing(productflow: Database, rows: Rows):
    jobs = stuck(rows, 3)
    rows.all("GRANT SELECT ON pfsup.live_envelopes, pfsup.recovery TO t_read")
    async with domain(productflow, "delivery", mode="observe", as_reader=True) as delivery:
        report = await delivery.run()
    assert report.decisions == {Decision.REDISPATCH: 3}
    assert staged(rows, jobs) == []
    assert rows.one("SELECT count(*) FROM pfsup.recovery").count == 0


async def test_decision_is_written_to_ledger_and_audit_with_its_evidence(productflow: Database, rows: Rows):
    job = rows.delivery(status="running", attempt_id="a1")
    async with domain(productflow, "delivery") as delivery:
        await delivery.run()
    line = rows.ledger("delivery", job)
    assert line is not None
    assert (line.last_decision, line.recoveries, line.evidence["status"]) == ("redispatch", 1, "running")
    audit = rows.one("SELECT * FROM pfsup.audit WHERE subject = %s", f"delivery:{job}")
    assert (audit.kind, audit.who, audit.before, audit.after) == ("recovery", "domain delivery", "running", "queued")


async def test_evidence_holds_no_token(productflow: Database, rows: Rows):
    """A token is the right to write."""
    job = rows.delivery(status="running", envelope="lost")
    token = str(rows.envelope(f"delivery:{job}").lease_token)
    async with domain(productflow, "delivery") as delivery:
        await delivery.run_twice()
    shown = rows.all(
        "SELECT evidence::text AS evidence FROM pfsup.recovery UNION SELECT evidence::text FROM pfsup.audit"
    )
    assert shown
    assert not any(token in row.evidence for row in shown)


async def test_candidate_that_breaks_its_judges_connection_does_not_come_first_again(productflow: Database, rows: Rows):
    """As one that kills its process would: the batch ends, the domain comes back, and the others have their turn."""
    jobs = stuck(rows, 3)
    refuse(rows, [jobs[0]])
    rows.all(
        "CREATE OR REPLACE FUNCTION productflow.poison() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN IF EXISTS (SELECT FROM productflow.poisoned p WHERE p.id = new.id)"
        " THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN new; END $$"
    )
    with productflow.superuser() as conn:
        conn.execute("ALTER FUNCTION productflow.poison() OWNER TO CURRENT_USER")
    async with domain(productflow, "delivery", batch_size=1) as delivery:
        with pytest.raises(psycopg.OperationalError):
            await delivery.run()
        await delivery.run()
    assert staged(rows, jobs) == [jobs[1]]
