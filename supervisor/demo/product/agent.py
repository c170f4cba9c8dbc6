"""Agent's worker: owns one turn under a fencing token, and writes each step into the turn's journal with the step."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from ....shared.worker.task import Task
from .desk import Conn, Desk


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn in hand. `fence`: the token that every write names; `calls`: how many calls it has made before."""

    fence: int
    owner: str
    task_id: str | None
    status: str
    answer: Any
    asks: bool
    calls: int

    @property
    def right(self) -> dict[str, Any]:
        """What a write must name."""
        return {"fence": self.fence, "owner": self.owner}


@dataclass(frozen=True, slots=True)
class Agent:
    """The function of actor `agent`."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """Take the turn; then end it as a person wished, or call the provider and end it, or ask the person first.

        A turn that no worker may take is only settled.
        """
        await self.desk.at("begun", task)
        turn = await self._take(task)
        if turn is None:
            return
        async with self.desk.renewing(task, "renew_turn", **turn.right):
            if turn.status == "cancel_requested":
                await self._end(task, turn, "cancelled")
                return
            await self._start(task, turn)
            effect = await self._intend(task, turn)
            ref = await self.desk.call(task, key=effect, index=turn.calls)
            await self._note_result(task, turn, effect, ref)
            if turn.asks and turn.answer is None:
                await self._ask(task, turn)
            else:
                await self._end(task, turn, "succeeded")

    async def _take(self, task: Task) -> Turn | None:
        owner = f"{socket.gethostname()}:{os.getpid()}:{task.id}"
        async with self.desk.transaction() as conn:
            await self.desk.find(conn, task, "lock_turn")
            if await self.desk.find(conn, task, "needs_worker") is None:
                return None
            row = await self.desk.find(conn, task, "take_turn", owner=owner)
            if row is None:
                return None
            await self.desk.find(conn, task, "start_task", task_id=row.task_id)
            await self.desk.fence(conn, task)
        await self.desk.at("claimed", task)
        return Turn(owner=owner, **row._asdict())

    async def _start(self, task: Task, turn: Turn) -> None:
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "progress_turn", phase="thinking", **turn.right)
            if turn.answer is not None:
                await self._append(conn, task, turn, "answer", {"answer": turn.answer})
            await self._append(conn, task, turn, "begun", {"run": task.id})
        await self.desk.at("started", task)

    async def _intend(self, task: Task, turn: Turn) -> str:
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "progress_turn", phase="provider_call", **turn.right)
            asked = {"domain": "agent", "owner": task.aggregate_id, "attempt": str(turn.fence), "index": turn.calls}
            row = await self.desk.find(conn, task, "insert_effect", **asked)
            effect = str(row.id) if row else ""
            await self._append(conn, task, turn, "effect_begun", {"effect": effect})
            await self.desk.fence(conn, task)
        await self.desk.at("intent", task)
        return effect

    async def _note_result(self, task: Task, turn: Turn, effect: str, ref: str) -> None:
        async with self.desk.transaction() as conn:
            told = {"phase": "result_received", **turn.right}
            await self.desk.write(conn, task, "progress_turn", result=True, **told)
            await self.desk.write(conn, task, "apply_effect", result=True, effect=effect)
            await self._append(conn, task, turn, "effect_done", {"effect": effect, "ref": ref})
        await self.desk.at("effect_stored", task)

    async def _ask(self, task: Task, turn: Turn) -> None:
        async with self.desk.settling(task) as conn:
            await self.desk.write(conn, task, "ask_person", result=True, **turn.right)
            await self._append(conn, task, turn, "question", {"question": "which one?"})

    async def _end(self, task: Task, turn: Turn, end: str) -> None:
        async with self.desk.settling(task) as conn:
            await self.desk.write(conn, task, "finish_turn", result=True, end=end, **turn.right)
            await self.desk.find(conn, task, "finish_task", task_id=turn.task_id, end=end)
            await self._append(conn, task, turn, f"turn_{end}", {})

    async def _append(self, conn: Conn, task: Task, turn: Turn, kind: str, body: dict[str, Any]) -> None:
        await self.desk.write(conn, task, "append_event", kind=kind, body=Jsonb(body), fence=turn.fence)
