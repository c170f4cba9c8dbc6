"""The worker's side of the latency bench: a plain XREADGROUP loop that notes when it holds each message.

Called as: reader.py REDIS_URL STREAM ROWS OUTPUT; it ends after ROWS messages and writes one `id nanoseconds` a line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from pfsup.supervisor.demo.programs import Program

    from .servers import Bench

GROUP = "pfsup"


def open_redis(url: str) -> Any:
    """A client; Any, because redis-py leaves its keyword arguments untyped."""
    return redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - see above


def read(redis_url: str, stream: str, rows: int) -> dict[str, int]:
    """Read `rows` messages; return when each was in our hands (monotonic ns) by its dispatch_id."""
    client = open_redis(redis_url)
    try:
        client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    except redis.ResponseError as error:
        if not str(error).startswith("BUSYGROUP"):
            raise
    print("ready", flush=True)
    held: dict[str, int] = {}
    while len(held) < rows:
        found: list[Any] = client.xreadgroup(GROUP, "reader", {stream: ">"}, count=100, block=1000) or []
        now = time.monotonic_ns()
        for _, entries in found:
            held.update({fields[b"dispatch_id"].decode(): now for _, fields in entries})
            ids = [entry for entry, _ in entries]
            client.xack(stream, GROUP, *ids)
            client.xdel(stream, *ids)
    return held


class Arrivals:
    """A reader that runs; `collect()` waits for its end."""

    def __init__(self, program: Program, output: Path) -> None:
        self._program = program
        self._output = output

    def collect(self, *, within_s: float) -> dict[str, int]:
        """When each message was held, by id. Empty where the reader did not get all within `within_s`."""
        if self._program.wait(within_s) != 0:
            return {}
        lines = (line.split() for line in self._output.read_text().splitlines())
        return {key: int(at) for key, at in lines}


@contextmanager
def started(bench: Bench, stream: str, rows: int) -> Generator[Arrivals]:
    """A reader process of `stream`, ended at the end."""
    output = bench.folder / "arrivals"
    output.unlink(missing_ok=True)
    with bench.program("reader", [__file__, bench.redis_url, stream, str(rows), str(output)]) as program:
        program.expect("ready", within_s=30)
        yield Arrivals(program, output)


if __name__ == "__main__":
    arrived = read(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    Path(sys.argv[4]).write_text("".join(f"{key} {at}\n" for key, at in arrived.items()))
