"""effect and beat: the boundary of an outside call, and the lease around it."""

from __future__ import annotations

import psycopg
import pytest
from support.runs import Begun, Owner, Worker


@pytest.fixture
def run(owner: Owner, worker: Worker) -> Begun:
    return worker.begun(owner.sent())


def refused(call: str, worker: Worker, *params: object) -> str:
    with pytest.raises(psycopg.Error) as error:
        worker.rows(call, *params)
    return str(error.value.sqlstate)


def test_effect_goes_from_begun_to_done_with_its_ref(owner: Owner, worker: Worker, run: Begun) -> None:
    assert worker.effect(run, "begun", ref="key-1")[:] == ("ok", "key-1")
    assert owner.row(run.id).effect == "begun"
    assert worker.effect(run, "done", ref="img-9")[:] == ("ok", "img-9")
    assert owner.row(run.id).effect == "done"
    line = owner.one("SELECT * FROM pfsup.dispatch_effects")
    assert (line.name, line.state, line.ref, line.attempt) == ("main", "done", "img-9", 1)


def test_ref_known_before_the_call_stays_when_the_call_brings_none(worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun", ref="key-1")
    assert worker.effect(run, "done").effect_ref == "key-1"


def test_beginning_a_done_effect_says_done_and_what_it_left(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun")
    worker.effect(run, "done", ref="img-9")
    assert worker.effect(run, "begun", ref="other")[:] == ("done", "img-9")
    assert owner.row(run.id).effect == "done"


def test_void_effect_leaves_no_trace_and_may_begin_again(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun")
    worker.effect(run, "void")
    assert owner.row(run.id).effect == "none"
    assert worker.effect(run, "begun").verdict == "ok"


def test_row_is_begun_while_any_of_its_effects_is(owner: Owner, worker: Worker, run: Begun) -> None:
    for name in ("one", "two"):
        worker.effect(run, "begun", name)
    worker.effect(run, "done", "one")
    assert owner.row(run.id).effect == "begun"
    worker.effect(run, "done", "two")
    assert owner.row(run.id).effect == "done"


@pytest.mark.parametrize("state", ["begun", "done", "void"])
def test_step_repeated_after_a_lost_answer_is_harmless(owner: Owner, worker: Worker, run: Begun, state: str) -> None:
    worker.effect(run, "begun")
    worker.effect(run, state, ref="r")
    before = owner.row(run.id).effect
    worker.effect(run, state, ref="r")
    assert owner.row(run.id).effect == before


@pytest.mark.parametrize("state", ["done", "void"])
def test_step_without_begun_is_refused(worker: Worker, run: Begun, state: str) -> None:
    assert refused("SELECT pfsup.effect(%s, %s, %s)", worker, *run, state) == "PF410"


def test_done_effect_cannot_be_voided(worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun")
    worker.effect(run, "done")
    assert refused("SELECT pfsup.effect(%s, %s, 'void')", worker, *run) == "PF410"


def test_begun_needs_a_live_lease_and_done_does_not(owner: Owner, worker: Worker, run: Begun) -> None:
    worker.effect(run, "begun", "one")
    owner.expire(run.id)
    assert refused("SELECT pfsup.effect(%s, %s, 'begun', 'two')", worker, *run) == "PF412"
    assert worker.effect(run, "done", "one").verdict == "ok"
    assert worker.beat(run).verdict == "ok"
    assert worker.effect(run, "begun", "two").verdict == "ok"


@pytest.mark.parametrize("state", ["begun", "done", "void"])
def test_late_effect_is_refused(owner: Owner, worker: Worker, run: Begun, state: str) -> None:
    owner.take_away(run.id)
    assert refused("SELECT pfsup.effect(%s, %s, %s)", worker, *run, state) == "PF412"
    assert owner.value("SELECT count(*) FROM pfsup.dispatch_effects") == 0


@pytest.mark.parametrize(
    "arguments", ["'began'", "NULL", "'begun', ''", "'begun', E'a\\nb'", "'begun', repeat('x', 101)",
                  "'begun', 'main', repeat('x', 401)", "'begun', NULL"],
)  # fmt: skip
def test_bad_argument_is_refused(worker: Worker, run: Begun, arguments: str) -> None:
    assert refused(f"SELECT pfsup.effect(%s, %s, {arguments})", worker, *run) == "PF400"


def test_effect_of_an_unknown_row_says_so(worker: Worker, run: Begun) -> None:
    assert refused("SELECT pfsup.effect(4711, %s, 'begun')", worker, run.token) == "PF404"


def test_beat_prolongs_the_lease_from_now(owner: Owner, worker: Worker, run: Begun) -> None:
    answer = worker.beat(run, "100 s")
    assert answer.verdict == "ok"
    left_s = owner.value("SELECT extract(epoch FROM %s - clock_timestamp())", answer.lease_expires_at)
    assert 90 < left_s <= 100


def test_beat_revives_a_lease_that_nobody_took(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.expire(run.id)
    assert worker.beat(run).verdict == "ok"
    assert owner.value("SELECT lease_expires_at > clock_timestamp() FROM pfsup.async_dispatches")


def test_beat_of_a_run_that_lost_its_row_is_late(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.take_away(run.id)
    assert worker.beat(run).verdict == "late"
    owner.mark(run.id)
    worker.begun(run.id, worker="w2")
    assert worker.beat(run).verdict == "late"


def test_beat_past_the_deadline_says_so_and_prolongs_nothing(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.rows("UPDATE pfsup.async_dispatches SET deadline_at = clock_timestamp()")
    before = owner.row(run.id).lease_expires_at
    assert worker.beat(run)[:] == ("deadline", before)


def test_beat_never_waits_for_a_locked_row(owner: Owner, worker: Worker, run: Begun) -> None:
    before = owner.row(run.id).lease_expires_at
    with owner.conn.transaction():
        owner.rows("SELECT FROM pfsup.async_dispatches WHERE id = %s FOR UPDATE", run.id)
        worker.rows("SET lock_timeout = '1ms'")
        assert worker.beat(run)[:] == ("ok", before)


def test_beat_of_a_cancelled_run_says_cancel(owner: Owner, worker: Worker, run: Begun) -> None:
    owner.rows(
        "UPDATE pfsup.async_dispatches SET status = 'cancelled', finished_at = clock_timestamp(),"
        " lease_expires_at = NULL, check_at = NULL"
    )
    assert worker.beat(run).verdict == "cancel"


@pytest.mark.parametrize("lease", ["0.5 s", "2 days"])
def test_beat_refuses_a_lease_out_of_bounds(worker: Worker, run: Begun, lease: str) -> None:
    assert refused("SELECT pfsup.beat(%s, %s, %s)", worker, *run, lease) == "PF400"
