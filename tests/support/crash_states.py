"""For each domain one row of every kind that recovery treats in a way of its own, and how all of it stands later.

Ids are the same each time, so that two ends can be compared. A call named in CALLED may have been made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .crash import DOOMED, Scene
from .crash_cycles import LONG_SENT
from .rows import Rows

CALLED = "called-"  # rows whose outside call may have been made have ids that begin so


def _worn_out(rows: Rows, domain: str, candidate: str) -> None:
    """As many recoveries as a row may cost have not helped."""
    rows.all("SELECT pfsup.note_recovery(%s, %s, 'redispatch', 'once more', NULL, '0 s', 5)", domain, candidate)


def delivery(scene: Scene) -> None:
    rows = scene.rows
    rows.delivery(id="queued")
    rows.delivery(id="silent", status="running", attempt_id="a1")
    rows.delivery(id="lost", status="running", attempt_id="a1", envelope="lost")
    rows.delivery(id="worn-out", status="running", attempt_id="a1", envelope="lost")
    _worn_out(rows, "delivery", "worn-out")
    rows.delivery(id="dead", status="running", attempt_id="a1", envelope="dead")
    rows.delivery(id="over", status="succeeded", envelope="lost")


def local_edit(scene: Scene) -> None:
    rows = scene.rows
    rows.local_edit(id="queued")
    rows.local_edit(id="claimed", status="running", phase="claimed", attempt_id="a1", envelope="lost")
    for name, envelope in (("lost", "lost"), ("silent", None), ("dead", "dead")):
        edit = f"{CALLED}{name}"
        rows.local_edit(id=edit, status="running", phase="provider_call", attempt_id="a1", envelope=envelope)
        rows.effect("local_edit", edit)
    rows.local_edit(id="over", status="succeeded", envelope="lost")


def image_session(scene: Scene) -> None:
    rows = scene.rows
    session = {"status": "running", "active_attempt_id": "a1", "requested_candidates": 3}
    rows.image_task(id="queued", requested_candidates=2)
    rows.image_task(id="between", phase="candidate_saved", envelope="lost", **session)
    rows.images("between", 0)
    rows.effect("image_session", "between", state="applied")
    rows.image_task(id="repaired", phase="candidate_saved", envelope="lost", **session)
    rows.images("repaired", 0, 1)
    rows.effect("image_session", "repaired", count=2)
    rows.image_task(id=f"{CALLED}lost", phase="provider_call", active_candidate_index=1, envelope="lost", **session)
    rows.images(f"{CALLED}lost", 0)
    rows.effect("image_session", f"{CALLED}lost", state="applied")
    rows.effect("image_session", f"{CALLED}lost", first_index=1)


def workflow(scene: Scene) -> None:
    rows = scene.rows
    dead = {"status": "running", "lease_token": "8a2e1a4e-0000-4000-8000-000000000000", "lease_expires_at": "ago 1 h"}
    rows.workflow(id="mixed", envelope="lost", **dead)
    rows.node("mixed", id="mixed-1", node="a", status="succeeded")
    rows.node("mixed", id=f"{CALLED}2", node="b", status="running", phase="provider_call")
    rows.effect("workflow", f"{CALLED}2")
    rows.node("mixed", id="mixed-3", node="c", status="running", phase="prepared")
    rows.effect("workflow", "mixed-3")
    rows.workflow(id="all-called", envelope="lost", **dead)
    rows.node("all-called", id=f"{CALLED}all", node="a", status="running", phase="provider_call")
    rows.effect("workflow", f"{CALLED}all")
    rows.workflow(id="finished", **dead)
    rows.node("finished", id="finished-1", node="a", status="succeeded")
    rows.workflow(id="waits", graph_id="free")
    rows.node("waits", id="waits-1", node="a")
    rows.workflow(id="waits-longer", graph_id="free", created_at="ago 1 hour")
    rows.node("waits-longer", id="waits-longer-1", node="a")


def agent(scene: Scene) -> None:
    rows = scene.rows
    rows.agent_task(id="k1")
    rows.agent_task(id="k2", status="running")
    rows.agent_task(id="k3", status="running")
    owned = {"owner": "w1", "status": "running"}
    rows.turn(id="claimed", phase="claimed", envelope="lost", **owned)
    rows.turn(id=f"{CALLED}lost", phase="provider_call", task_id="k2", envelope="lost", **owned)
    effect = rows.effect("agent", f"{CALLED}lost", id="effect-1", attempt_id="5")
    rows.event(f"{CALLED}lost", "begun")
    rows.event(f"{CALLED}lost", "effect_begun", effect=effect)
    rows.turn(id="ended", phase="provider_call", task_id="k3", envelope="lost", **owned)
    rows.event("ended", "turn_succeeded")
    rows.turn(id="asks", owner="w1", status="requires_input")
    rows.turn(id="unbound")


def envelope(scene: Scene) -> None:
    rows = scene.rows
    rows.stand_for("mail:none", "lost")
    rows.stand_for("mail:done", "lost", effect="done")
    rows.stand_for(f"mail:{CALLED}begun", "lost", effect="begun")
    rows.stand_for("mail:worn-out", "lost", recoveries=5)
    scene.app.conn.execute(b"SELECT pfsup.stage('mail', 'gone', NULL, NULL, 'mail:gone')")
    scene.doomed.client.xadd(DOOMED, {"v": "1"}, id=f"{next(scene.entries)}-1")
    entry = f"{next(scene.entries)}-1"
    number = rows.envelope("mail:gone").id
    scene.doomed.owner.mark(number, sink_ref=f"{DOOMED} {entry}")
    rows.all(LONG_SENT)
    scene.doomed.client.xadd(DOOMED, {"v": "1"}, id=f"{next(scene.entries)}-1")


STATES: Mapping[str, Callable[[Scene], None]] = {
    "delivery": delivery,
    "local_edit": local_edit,
    "image_session": image_session,
    "workflow": workflow,
    "agent": agent,
    "envelope": envelope,
}

_ENDS = {
    "delivery": "SELECT id, status, is_retryable, attempt_id, phase FROM productflow.delivery_jobs",
    "local_edit": "SELECT id, status, is_retryable, attempt_id, phase FROM productflow.local_edit_tasks",
    "image_session": "SELECT id, status, is_retryable, active_attempt_id, phase FROM productflow.image_tasks",
    "workflow": "SELECT id, status, lease_token::text FROM productflow.workflow_runs",
    "node": "SELECT id, status, attempt_id, phase FROM productflow.workflow_node_runs",
    "agent": "SELECT CASE WHEN key LIKE 'initial:%%' THEN key ELSE id END, status, owner, fencing_token, phase"
    " FROM productflow.agent_turns",
    "task": "SELECT id, status FROM productflow.agent_tasks",
    "event": "SELECT turn_id, seq, kind FROM productflow.agent_turn_events",
    "effect": "SELECT domain, owner_id, first_index, state FROM productflow.provider_effects",
    "envelope": "SELECT CASE WHEN actor = 'agent' AND t.key LIKE 'initial:%%' THEN t.key ELSE delivery_key END,"
    " d.status, effect, recoveries FROM pfsup.async_dispatches AS d"
    " LEFT JOIN productflow.agent_turns AS t ON t.id = d.aggregate_id",
    "recoveries": "SELECT domain, candidate_id, recoveries FROM pfsup.recovery WHERE recoveries > 0"
    " AND candidate_id !~ '^[0-9]+$'",
    "audit": "SELECT domain, CASE WHEN domain = 'envelope' THEN 'row' ELSE regexp_replace(subject, 'run:[0-9]+', 'run')"
    " END, action, before, after FROM pfsup.audit_log WHERE kind = 'recovery'",
}


def standing(scene: Scene) -> Counter[tuple[Any, ...]]:
    """How everything stands: rows, journals, envelopes, what recovery counted and what it wrote into the audit."""
    return Counter((name, *row) for name, query in _ENDS.items() for row in scene.rows.all(query))
