"""The application's side: what a person asks for becomes a row, and its envelope in the same transaction.

Each function takes a connection of the application (role <schema>_stage) and returns the new row's id. `schema` is
pfsup's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import psycopg
from psycopg.types.json import Jsonb

from ....shared.db.queries import Queries
from ....shared.outbox import stage


@dataclass(frozen=True, slots=True)
class App:
    """The product's application over one connection."""

    conn: psycopg.Connection[Any]
    queries: Queries
    schema: str = "pfsup"

    def ask_delivery(self, request: Mapping[str, Any] | None = None) -> str:
        """An image in another size or format."""
        with self.conn.transaction():
            job = self._insert("insert_delivery", request=_json(request))
            self._stage("delivery", job, {"job_id": job})
        return job

    def ask_edit(self, request: Mapping[str, Any]) -> str:
        """A part of an image changed. The message carries the hash of what was asked for."""
        told = hash_of(request)
        with self.conn.transaction():
            edit = self._insert("insert_edit", request=_json(request), hash=told)
            self._stage("local_edit", edit, {"task_id": edit, "request_hash": told})
        return edit

    def ask_images(self, count: int, request: Mapping[str, Any] | None = None) -> str:
        """`count` images of something."""
        with self.conn.transaction():
            session = self._insert("insert_session", request=_json(request), count=count)
            self._stage("image_session", session, {"task_id": session})
        return session

    def ask_run(self, graph: str, nodes: Sequence[tuple[str, bool]]) -> str:
        """A run of a graph: its nodes by name and whether they call the provider. It waits its turn in its graph."""
        with self.conn.transaction():
            self.conn.execute(self.queries["lock_graph"], {"graph": graph})
            run = self._insert("insert_run", graph=graph)
            for place, (node, calls) in enumerate(nodes):
                self._insert("insert_node", run=run, node=node, position=place, request=Jsonb({"call": calls}))
            busy = self._row("graph_is_busy", graph=graph, run=run)
            if busy is not None and not busy[0]:
                self._stage("workflow", run, {"run_id": run})
        return run

    def ask_agent(self, conversation: str, request: Mapping[str, Any] | None = None) -> str:
        """Something of the agent, in a conversation; returns the turn. `{"ask": true}`: it will ask back once."""
        with self.conn.transaction():
            self.conn.execute(self.queries["insert_conversation"], {"conversation": conversation})
            task = self._insert("insert_agent_task", conversation=conversation, request=_json(request))
            turn = self._insert("insert_first_turn", task=task)
            self.conn.execute(self.queries["name_turn"], {"task": task, "turn": turn})
            self._stage("agent", turn, {"turn_id": turn})
        return turn

    def answer(self, turn: str, answer: Mapping[str, Any]) -> bool:
        """A person's answer to what a turn asked; False where it does not wait for one."""
        with self.conn.transaction():
            waits = self._row("answer_turn", turn=turn, answer=_json(answer)) is not None
            if waits:
                self._stage("agent", turn, {"turn_id": turn})
        return waits

    def cancel(self, turn: str) -> bool:
        """A person's wish that a turn ends; False where it is over."""
        with self.conn.transaction():
            wished = self._row("wish_cancel", turn=turn) is not None
            if wished:
                self._stage("agent", turn, {"turn_id": turn})
        return wished

    def _insert(self, name: str, **asked: Any) -> str:
        row = self._row(name, **asked)
        assert row is not None
        return str(row[0])

    def _row(self, name: str, **asked: Any) -> tuple[Any, ...] | None:
        return self.conn.execute(self.queries[name], asked).fetchone()

    def _stage(self, domain: str, number: str, payload: Mapping[str, Any]) -> None:
        stage(self.conn, domain, number, payload, delivery_key=f"{domain}:{number}", schema=self.schema)


def hash_of(request: Mapping[str, Any]) -> str:
    """What an edit's message carries, so that no worker does what is no longer asked for."""
    return hashlib.sha256(orjson.dumps(dict(request), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _json(value: Mapping[str, Any] | None) -> Jsonb | None:
    return None if value is None else Jsonb(dict(value))
