"""Workflow's worker: one run under a lease of its own, node after node, each by its phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from ....shared.worker.task import Task
from .desk import Conn, Desk, new_attempt


@dataclass(frozen=True, slots=True)
class Node:
    """A node in hand. `place`: its position in the run; `calls`: it needs the provider."""

    id: str
    place: int
    calls: bool
    attempt: str


@dataclass(frozen=True, slots=True)
class Workflow:
    """The function of actor `workflow`."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """Take the run, work on every node that is queued, and close it. A run whose turn it is not is only settled."""
        lease = uuid4()
        await self.desk.at("begun", task)
        if not await self._take(task, lease):
            return
        async with self.desk.renewing(task, "renew_run", lease=lease):
            while (node := await self._next(task, lease)) is not None:
                await self._work(task, lease, node)
        await self._close(task, lease)

    async def _take(self, task: Task, lease: UUID) -> bool:
        try:
            async with self.desk.transaction() as conn:
                if await self.desk.find(conn, task, "take_run", lease=lease) is None:
                    return False
                await self.desk.fence(conn, task)
        except UniqueViolation:  # another run of the graph began this moment: recovery gives this one its turn
            return False
        await self.desk.at("taken", task)
        return True

    async def _next(self, task: Task, lease: UUID) -> Node | None:
        attempt = new_attempt()
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "hold_run", lease=lease)
            row = await self.desk.find(conn, task, "claim_node", attempt=attempt)
        if row is None:
            return None
        await self.desk.at("claimed", task)
        return Node(id=row.id, place=row.place, calls=row.calls, attempt=attempt)

    async def _work(self, task: Task, lease: UUID, node: Node) -> None:
        await self._progress(task, lease, node, phase="prepared")
        effect = None
        if node.calls:
            effect = await self._intend(task, lease, node)
            ref = await self.desk.call(task, key=effect, index=node.place, owner=node.id)
            await self._progress(task, lease, node, phase="result_received", made=Jsonb({"file": ref}))
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "hold_run", result=True, lease=lease)
            await self.desk.write(conn, task, "finish_node", result=True, node=node.id, attempt=node.attempt)
            if effect is not None:
                await self.desk.write(conn, task, "apply_effect", result=True, effect=effect)
        await self.desk.at("node_stored", task)

    async def _intend(self, task: Task, lease: UUID, node: Node) -> str:
        async with self.desk.transaction() as conn:
            await self._hold(conn, task, lease, node, phase="provider_call")
            asked = {"domain": "workflow", "owner": node.id, "attempt": node.attempt, "index": 0}
            effect = await self.desk.find(conn, task, "insert_effect", **asked)
            await self.desk.fence(conn, task)
        await self.desk.at("intent", task)
        return str(effect.id) if effect else ""

    async def _progress(self, task: Task, lease: UUID, node: Node, *, phase: str, made: Jsonb | None = None) -> None:
        async with self.desk.transaction() as conn:
            await self._hold(conn, task, lease, node, phase=phase, made=made)
        await self.desk.at(phase, task)

    async def _hold(self, conn: Conn, task: Task, lease: UUID, node: Node, *, phase: str, made: Any = None) -> None:
        has_result = made is not None
        await self.desk.write(conn, task, "hold_run", result=has_result, lease=lease)
        told = {"node": node.id, "attempt": node.attempt, "phase": phase, "made": made}
        await self.desk.write(conn, task, "progress_node", result=has_result, **told)

    async def _close(self, task: Task, lease: UUID) -> None:
        async with self.desk.settling(task) as conn:
            await self.desk.write(conn, task, "hold_run", result=True, lease=lease)
            row = await self.desk.find(conn, task, "run_is_closable")
            name = "close_run" if row is not None and row.closable else "leave_run"
            await self.desk.write(conn, task, name, result=True, lease=lease)
