"""Delivery's worker: renders the same bytes every time and asks nobody outside."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.types.json import Jsonb

from ....shared.worker.task import Task
from .desk import Desk, new_attempt


@dataclass(frozen=True, slots=True)
class Delivery:
    """The function of actor `delivery`."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """Take the job, render, store and settle at once. A job that needs no worker is only settled."""
        attempt = new_attempt()
        await self.desk.at("begun", task)
        if not await self._claim(task, attempt):
            return
        await self._progress(task, attempt)
        await self.desk.at("rendered", task)
        async with self.desk.settling(task) as conn:
            result = Jsonb({"file": f"rendered/{task.aggregate_id}"})
            await self.desk.write(conn, task, "finish_delivery", result=True, attempt=attempt, made=result)

    async def _claim(self, task: Task, attempt: str) -> bool:
        async with self.desk.transaction() as conn:
            if await self.desk.find(conn, task, "claim_delivery", attempt=attempt) is None:
                return False
            await self.desk.fence(conn, task)
        await self.desk.at("claimed", task)
        return True

    async def _progress(self, task: Task, attempt: str) -> None:
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "progress_delivery", attempt=attempt)
        await self.desk.at("progressed", task)
