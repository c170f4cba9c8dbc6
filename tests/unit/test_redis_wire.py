"""The wire to Redis against a line that breaks: one exchange is one connection and one write, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.exceptions as broker
from pfsup.config import values
from pfsup.shared.sinks.redis_wire import Wires


class Line:
    """A peer that answers the connection's own commands and breaks the line when it is given an entry."""

    def __init__(self, *, hangs_up_at_once: bool) -> None:
        self.connections = 0
        self.entries = 0
        self._hangs_up_at_once = hangs_up_at_once

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while not self._hangs_up_at_once and (said := await reader.read(65536)):
            self.entries += said.count(b"XADD")
            if b"XADD" in said:
                break
            writer.write(b"+OK\r\n" * said.count(b"CLIENT"))
        writer.close()


@asynccontextmanager
async def broken(place: Path, *, hangs_up_at_once: bool) -> AsyncGenerator[tuple[Line, Wires]]:
    line = Line(hangs_up_at_once=hangs_up_at_once)
    server = await asyncio.start_unix_server(line.meet, str(place / "s"))
    wires = Wires(values.Redis(url=f"unix://{place}/s"), client_name="pfsup:test:1")
    async with server:
        yield line, wires
    await wires.close()


async def test_entry_whose_answer_was_lost_is_not_written_again(short_dir: Path):
    """It may be in the stream: only dispatch, which knows the row, decides to send it once more."""
    async with broken(short_dir, hangs_up_at_once=False) as (line, wires):
        with pytest.raises(broker.ConnectionError):
            await wires.call(("XADD", "s", "*", "v", "1"))
        assert (line.connections, line.entries) == (1, 1)


async def test_connection_that_is_refused_is_tried_once(short_dir: Path):
    """When to try again is the breaker's decision; hidden retries would double its half second."""
    async with broken(short_dir, hangs_up_at_once=True) as (line, wires):
        with pytest.raises(broker.ConnectionError):
            await wires.call(("XADD", "s", "*", "v", "1"))
        assert (line.connections, line.entries) == (1, 0)
