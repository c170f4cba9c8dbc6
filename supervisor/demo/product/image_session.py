"""Image session's worker: a call an image, each with its intent before it and its image stored before the next."""

from __future__ import annotations

from dataclasses import dataclass

from ....shared.worker.outcomes import Unknown
from ....shared.worker.task import Task
from .desk import Conn, Desk, new_attempt


@dataclass(frozen=True, slots=True)
class Image:
    """One image on its way: which, under which line of the journal, and where it is."""

    index: int
    effect: str
    ref: str


@dataclass(frozen=True, slots=True)
class ImageSession:
    """The function of actor `image_session`."""

    desk: Desk

    async def __call__(self, task: Task) -> None:
        """Take the session and make the images that are missing, in order; the last one ends it.

        Raises Unknown for a session in which a call may be made whose image is not stored.
        """
        attempt = new_attempt()
        await self.desk.at("begun", task)
        missing = await self._claim(task, attempt)
        if missing is None:
            return
        for index in missing[:-1]:
            image = await self._make(task, attempt, index)
            async with self.desk.transaction() as conn:
                await self._store(conn, task, attempt, image)
            await self.desk.at("saved", task)
        last = await self._make(task, attempt, missing[-1]) if missing else None
        async with self.desk.settling(task) as conn:
            if last is not None:
                await self._store(conn, task, attempt, last)
            await self.desk.write(conn, task, "finish_session", result=True, attempt=attempt)

    async def _claim(self, task: Task, attempt: str) -> list[int] | None:
        """The indexes that are missing; None for a session that is over."""
        async with self.desk.transaction() as conn:
            row = await self.desk.find(conn, task, "claim_session", attempt=attempt)
            if row is None:
                return await self._refused(conn, task)
            found = await self.desk.find(conn, task, "missing_images", wanted=row.wanted)
            await self.desk.fence(conn, task)
        await self.desk.at("claimed", task)
        return list(found.missing) if found else []

    async def _refused(self, conn: Conn, task: Task) -> None:
        row = await self.desk.find(conn, task, "session_runs")
        await self.desk.fence(conn, task)
        if row is not None and row.running:
            raise Unknown("an earlier run may have called the provider for an image that is not stored")

    async def _make(self, task: Task, attempt: str, index: int) -> Image:
        """The intent, then the call."""
        async with self.desk.transaction() as conn:
            await self.desk.write(conn, task, "begin_image", attempt=attempt, index=index)
            asked = {"domain": "image_session", "owner": task.aggregate_id, "attempt": attempt, "index": index}
            effect = await self.desk.find(conn, task, "insert_effect", **asked)
            await self.desk.fence(conn, task)
        await self.desk.at("intent", task)
        name = str(effect.id) if effect else ""
        return Image(index, name, await self.desk.call(task, key=name, index=index))

    async def _store(self, conn: Conn, task: Task, attempt: str, image: Image) -> None:
        await self.desk.write(conn, task, "end_image", result=True, attempt=attempt)
        await self.desk.write(conn, task, "store_image", result=True, index=image.index, ref=image.ref)
        await self.desk.write(conn, task, "apply_effect", result=True, effect=image.effect)
