"""Messages of the outbox as dispatch writes them, and what is left of them in the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pfsup.shared.worker.message import text
from pfsup.shared.worker.worker import Worker

from .runs import Owner
from .servers import redis_client

STREAM = "pfsup:pfsup:paint"


class Stream:
    """One queue's stream, seen from outside."""

    def __init__(self, client: Any, owner: Owner, name: str = STREAM) -> None:
        self.client = client
        self.name = name
        self.owner = owner

    def write(self, number: int, *, actor: str = "paint", **fields: str) -> str:
        """Write an entry for the row; returns the entry's id."""
        entry = {"v": "1", "dispatch_id": str(number), "source": self.owner.source(), "actor": actor, "headers": "{}"}
        return str(self.client.xadd(self.name, entry | fields))

    def deliver(self, *, actor: str = "paint", **staged: Any) -> int:
        """A sent row with its entry, as dispatch leaves it; returns the row's id."""
        number = self.owner.stage(actor=actor, queue="paint", **staged)
        self.deliver_again(number, actor=actor)
        return number

    def deliver_again(self, number: int, *, actor: str = "paint") -> None:
        """Send a pending row."""
        self.owner.mark(number, sink_ref=f"{self.name} {self.write(number, actor=actor)}")

    def message(self) -> dict[str, str]:
        """The newest entry's fields, as a framework's consumer hands them over."""
        ((_, fields),) = self.client.xrevrange(self.name, count=1)
        return {text(key): text(value) for key, value in fields.items()}

    def length(self) -> int:
        return int(self.client.xlen(self.name))

    def pending(self) -> list[str]:
        """The ids of entries that somebody was given and did not end."""
        if not self.client.exists(self.name) or not self.client.xinfo_groups(self.name):
            return []
        return [str(p["message_id"]) for p in self.client.xpending_range(self.name, "pfsup", "-", "+", 100)]

    def is_empty(self) -> bool:
        return self.length() == 0 and not self.pending()

    def consumers(self) -> list[str]:
        return [str(c["name"]) for c in self.client.xinfo_consumers(self.name, "pfsup")]


@contextmanager
def stream_of(redis_url: str, owner: Owner) -> Generator[Stream]:
    """The stream of queue `paint`."""
    with redis_client(redis_url) as client:
        yield Stream(client, owner)


@asynccontextmanager
async def serving(worker: Worker, *, consumer: str = "c1") -> AsyncGenerator[asyncio.Event]:
    """The worker at work; drained on leaving. Gives its stop event."""
    stop = asyncio.Event()
    serves = asyncio.create_task(worker.serve(stop, consumer=consumer))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(serves, 30)
