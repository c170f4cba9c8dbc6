"""Worker: what cannot be begun or run is said and kept, never quietly counted as done."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from pfsup.shared.worker.task import Task
from pfsup.shared.worker.worker import Worker
from support.database import Database
from support.messages import Stream, serving, stream_of
from support.runs import Owner
from support.waiting import auntil


@pytest.fixture
def stream(database: Database, owner: Owner) -> Generator[Stream]:
    with stream_of(database.redis_url, owner) as found:
        yield found


def worker_for(database: Database) -> Worker:
    """A worker of queue `paint`."""
    return Worker(database=database.worker_url, redis=database.redis_url, queues=["paint"])


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async_generator"])
async def test_plain_function_that_only_made_its_work_has_failed(
    database: Database, owner: Owner, stream: Stream, kind: str
) -> None:
    worker, ran = worker_for(database), list[int]()

    async def coroutine(task: Task) -> None:
        ran.append(task.id)

    def generator(task: Task) -> Generator[None]:
        ran.append(task.id)
        yield

    async def async_generator(task: Task) -> AsyncGenerator[None]:
        ran.append(task.id)
        yield

    made = {"coroutine": coroutine, "generator": generator, "async_generator": async_generator}[kind]

    @worker.actor("paint")
    def paint(task: Task) -> Any:  # what a decorator that knows no async functions leaves
        return made(task)

    number = stream.deliver()
    async with serving(worker):
        await auntil(stream.is_empty)
    row = owner.row(number)
    assert (row.status, row.attempts, ran) == ("pending", 1, [])
    assert row.last_error.startswith(
        f"PfsupError: cannot run actor paint: its function returned a {kind}, which never ran"
    )


async def test_message_whose_actor_ends_with_the_hand_over_is_left_and_said_once(
    database: Database, owner: Owner, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_for(database)

    @worker.actor("paint")
    async def paint(task: Task) -> None:
        raise AssertionError("it must not run")

    @worker.actor("print")
    async def prints(task: Task) -> None: ...

    handed = stream.deliver()
    owner.rows(
        "UPDATE pfsup.async_dispatches SET completion = 'handover', status = 'pending', sent_at = NULL,"
        " check_at = NULL WHERE id = %s",
        handed,
    )
    owner.claim(handed)
    stream.write(handed)
    number = stream.deliver(actor="print")
    with caplog.at_level(logging.WARNING, logger="pfsup.worker"):
        async with serving(worker):
            await auntil(lambda: owner.status(number) == "consumed" and stream.length() == 2)
    assert owner.status(handed) == "pending"
    (said,) = [r.message for r in caplog.records if "paint" in r.message]
    assert "cannot begin" in said
    assert 'set completion = "worker" in [actors.paint]' in said
