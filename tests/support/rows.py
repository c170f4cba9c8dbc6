"""Rows of the reference tables in every state a worker or a fault leaves them in, with or without their envelope.

Written by the owner: what arranges a test is never what is tested.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from .database import Database

Row = Any
LIVE = "('pending', 'held', 'sent', 'running', 'dead', 'unknown')"

# What an envelope of each kind looks like. `lost`: running, its worker's lease ended; `alive`: under a live lease.
ENVELOPES = {
    "pending": "SELECT",
    "sent": "UPDATE pfsup.async_dispatches SET status = 'sent', sent_at = clock_timestamp(), deliveries = 1,"
    " sink_ref = 's 1-1', check_at = clock_timestamp() + interval '1 minute' WHERE id = %(id)s",
    "held": "UPDATE pfsup.async_dispatches SET status = 'held' WHERE id = %(id)s",
    "alive": "UPDATE pfsup.async_dispatches SET status = 'running', sent_at = clock_timestamp(), deliveries = 1,"
    " started_at = clock_timestamp(), deadline_at = clock_timestamp() + interval '1 hour', worker = 'w1',"
    " lease_token = gen_random_uuid(), lease_expires_at = clock_timestamp() + interval '1 minute',"
    " check_at = clock_timestamp() + interval '1 minute' WHERE id = %(id)s",
    "lost": "UPDATE pfsup.async_dispatches SET status = 'running', sent_at = clock_timestamp(), deliveries = 1,"
    " started_at = clock_timestamp() - interval '5 minutes', deadline_at = clock_timestamp() + interval '1 hour',"
    " worker = 'w1', lease_token = gen_random_uuid(), lease_expires_at = clock_timestamp() - interval '1 minute',"
    " check_at = clock_timestamp() - interval '1 minute' WHERE id = %(id)s",
    "dead": "UPDATE pfsup.async_dispatches SET status = 'dead', finished_at = clock_timestamp(),"
    " last_error = 'the stream refused it' WHERE id = %(id)s",
    "unknown": "UPDATE pfsup.async_dispatches SET status = 'unknown', finished_at = clock_timestamp(),"
    " last_error = 'nobody knows' WHERE id = %(id)s",
    "consumed": "UPDATE pfsup.async_dispatches SET status = 'consumed', sent_at = clock_timestamp(),"
    " finished_at = clock_timestamp() WHERE id = %(id)s",
}


class Rows:
    """One autocommit connection of the owner."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn

    def all(self, query: str, *params: Any) -> list[Row]:
        """Everything that `query` answers."""
        found = self.conn.execute(query.encode(), params)
        return found.fetchall() if found.description else []

    def one(self, query: str, *params: Any) -> Row:
        """The one row that `query` answers."""
        (row,) = self.all(query, *params)
        return row

    def insert(self, table: str, **columns: Any) -> str:
        """A row of the reference tables; its id. A text that begins with `ago ` is a time: 'ago 2 hours'."""
        columns = {"id": str(uuid4())} | columns
        names, places = ", ".join(columns), ", ".join(_place(value) for value in columns.values())
        values = [_value(value) for value in columns.values()]
        self.all(f"INSERT INTO productflow.{table} ({names}) VALUES ({places})", *values)
        return str(columns["id"])

    def stand_for(self, key: str, kind: str | None, **columns: Any) -> int | None:
        """An envelope of this key in the state `kind` (see ENVELOPES); None: there is none."""
        if kind is None:
            return None
        actor, _, aggregate = key.partition(":")
        number = self.one(
            "SELECT id FROM pfsup.stage(%s, %s, %s, NULL, %s)", actor, aggregate, Jsonb({"of": key}), key
        ).id
        self.conn.execute(ENVELOPES[kind].encode(), {"id": number})
        for column, value in columns.items():
            self.all(
                f"UPDATE pfsup.async_dispatches SET {column} = {_place(value)} WHERE id = %s", _value(value), number
            )
        return number

    def delivery(self, *, envelope: str | None = None, **columns: Any) -> str:
        """A delivery job: running ones have been silent for two hours unless `progress_at` says otherwise."""
        return self._open("delivery_jobs", "delivery", envelope, columns)

    def local_edit(self, *, envelope: str | None = None, **columns: Any) -> str:
        """A local edit, likewise."""
        return self._open("local_edit_tasks", "local_edit", envelope, {"request_hash": "h1"} | columns)

    def image_task(self, *, envelope: str | None = None, **columns: Any) -> str:
        """An image session, likewise."""
        return self._open("image_tasks", "image_session", envelope, columns)

    def workflow(self, *, envelope: str | None = None, **columns: Any) -> str:
        """A run of a graph of its own, or of `graph_id`; a running one has no lease unless the columns say so."""
        return self._open("workflow_runs", "workflow", envelope, {"graph_id": str(uuid4())} | columns)

    def node(self, run: str, **columns: Any) -> str:
        """A node of a run: a running one has been silent for two hours unless `progress_at` says otherwise."""
        if columns.get("status", "queued") == "running":
            columns = {"started_at": "ago 3 hours", "progress_at": "ago 2 hours", "attempt_id": "a1"} | columns
        return self.insert("workflow_node_runs", **({"run_id": run, "node": str(uuid4())} | columns))

    def images(self, task: str, *indexes: int) -> None:
        """Images of a session that are stored."""
        query = "INSERT INTO productflow.image_candidates (task_id, candidate_index, ref) VALUES (%s, %s, 'stored')"
        for index in indexes:
            self.all(query, task, index)

    def effect(self, domain: str, owner: str, **columns: Any) -> str:
        """A line of the journal of outside calls: `pending`, of attempt a1, unless the columns say otherwise."""
        return self.insert("provider_effects", **({"domain": domain, "owner_id": owner, "attempt_id": "a1"} | columns))

    def turn(self, *, envelope: str | None = None, **columns: Any) -> str:
        """A turn of an agent: queued and nobody's; with an `owner` its lease ended unless the columns say otherwise."""
        owned = {"lease_expires_at": "ago 1 minute", "fencing_token": 5} if columns.get("owner") else {}
        given = {"conversation_id": "c1", "created_at": "ago 3 hours"} | owned | columns
        made = self.insert("agent_turns", **given)
        self.stand_for(f"agent:{made}", envelope)
        return made

    def event(self, turn: str, kind: str, **body: Any) -> int:
        """The next event in a turn's journal; its number."""
        return self.one(
            "INSERT INTO productflow.agent_turn_events (turn_id, seq, kind, body)"
            " SELECT %s, coalesce(max(seq), 0) + 1, %s, %s FROM productflow.agent_turn_events WHERE turn_id = %s"
            " RETURNING seq",
            *(turn, kind, Jsonb(body), turn),
        ).seq

    def agent_task(self, *, conversation: str = "c1", talks: bool = True, **columns: Any) -> str:
        """A task, queued, in a conversation that exists unless `talks` is False."""
        if talks:
            query = "INSERT INTO productflow.agent_conversations (id) VALUES (%s) ON CONFLICT DO NOTHING"
            self.all(query, conversation)
        return self.insert("agent_tasks", **({"conversation_id": conversation, "created_at": "ago 3 hours"} | columns))

    def _open(self, table: str, domain: str, envelope: str | None, columns: dict[str, Any]) -> str:
        if columns.get("status", "queued") == "running":
            columns = {"started_at": "ago 3 hours", "progress_at": "ago 2 hours"} | columns
        made = self.insert(table, **({"created_at": "ago 3 hours"} | columns))
        self.stand_for(f"{domain}:{made}", envelope)
        return made

    def row(self, table: str, number: str) -> Row:
        """A row of the reference tables as it stands."""
        return self.one(f"SELECT * FROM productflow.{table} WHERE id = %s", number)

    def envelope(self, key: str) -> Row:
        """The live envelope of a key; fails when there is none or more than one."""
        return self.one(f"SELECT * FROM pfsup.async_dispatches WHERE delivery_key = %s AND status IN {LIVE}", key)

    def envelopes(self, key: str) -> list[Row]:
        """Every envelope of a key, ended ones too, oldest first."""
        return self.all("SELECT * FROM pfsup.async_dispatches WHERE delivery_key = %s ORDER BY id", key)

    def ledger(self, domain: str, candidate: str) -> Row | None:
        """The candidate's line in the ledger."""
        found = self.all("SELECT * FROM pfsup.recovery WHERE domain = %s AND candidate_id = %s", domain, candidate)
        return found[0] if found else None

    def audited(self, domain: str, candidate: str) -> list[Row]:
        """The audit of a candidate, oldest first."""
        return self.all("SELECT * FROM pfsup.audit_log WHERE subject = %s ORDER BY id", f"{domain}:{candidate}")

    def awake(self) -> None:
        """Whatever sleeps in the ledger may be looked at again at once."""
        self.all("UPDATE pfsup.recovery_ledger SET next_check_at = clock_timestamp() - interval '1 s'")


def _place(value: Any) -> str:
    return "clock_timestamp() - %s::interval" if isinstance(value, str) and value.startswith("ago ") else "%s"


def _value(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("ago "):
        return value.removeprefix("ago ")
    return Jsonb(value) if isinstance(value, dict) else value


@contextmanager
def rows_of(database: Database) -> Generator[Rows]:
    """A connection of the owner."""
    with psycopg.connect(database.url, autocommit=True, row_factory=namedtuple_row) as conn:
        yield Rows(conn)
