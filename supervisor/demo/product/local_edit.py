"""Local edit's worker: one call outside, its intent written before, its result with the settlement."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from ....shared.worker.outcomes import Reject, Unknown
from ....shared.worker.task import Task
from .desk import Conn, Desk, new_attempt


@dataclass(frozen=True, slots=True)
class LocalEdit:
    """The function of actor `local_edit`."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """Take the edit, write the intent, call, store and settle at once. An edit that is over is only settled.

        Raises Reject for a message of another request than the row's, Unknown for an edit whose call may be made
        already.
        """
        attempt = new_attempt()
        await self.desk.at("begun", task)
        if not await self._claim(task, attempt):
            return
        effect = await self._intend(task, attempt)
        await self._progress(task, attempt, phase="provider_call")
        ref = await self.desk.call(task, key=effect, index=0)
        await self._progress(task, attempt, phase="provider_result_received", ref=ref)
        async with self.desk.settling(task) as conn:
            await self.desk.write(conn, task, "finish_edit", result=True, attempt=attempt, made=Jsonb({"file": ref}))
            await self.desk.write(conn, task, "apply_effect", result=True, effect=effect)

    async def _claim(self, task: Task, attempt: str) -> bool:
        async with self.desk.transaction() as conn:
            row = await self.desk.find(conn, task, "claim_edit", attempt=attempt)
            if row is None:
                return await self._refused(conn, task)
            if self._asked(task) not in (None, row.hash):
                raise Reject("its request is no longer the one that the message was written for")
            await self.desk.fence(conn, task)
        await self.desk.at("claimed", task)
        return True

    def _asked(self, task: Task) -> str | None:
        """The hash of the request that the message was written for; None where it does not say."""
        payload: dict[str, str] = task.payload or {}
        return payload.get("request_hash")

    async def _refused(self, conn: Conn, task: Task) -> bool:
        row = await self.desk.find(conn, task, "edit_runs")
        await self.desk.fence(conn, task)
        if row is not None and row.running:
            raise Unknown("an earlier run may have called the provider")
        return False

    async def _intend(self, task: Task, attempt: str) -> str:
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "progress_edit", attempt=attempt, phase="provider_pending", ref=None)
            effect = await self.desk.find(
                conn, task, "insert_effect", domain="local_edit", owner=task.aggregate_id, attempt=attempt, index=0
            )
            await self.desk.fence(conn, task)
        await self.desk.at("intent", task)
        return str(effect.id) if effect else ""

    async def _progress(self, task: Task, attempt: str, *, phase: str, ref: str | None = None) -> None:
        async with self.desk.transaction() as conn:
            told = {"attempt": attempt, "phase": phase, "ref": ref}
            await self.desk.write(conn, task, "progress_edit", result=ref is not None, **told)
        await self.desk.at(phase, task)
