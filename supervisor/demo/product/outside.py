"""The product's side of the provider: one call, one answer, over a socket of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from ....config.errors import PfsupError


@dataclass(frozen=True, slots=True)
class Outside:
    """A provider that makes images and answers, at a Unix socket."""

    address: str

    async def call(self, call: str, *, key: str, task: str, index: int) -> str:
        """Have one thing made for (task, index); where it is. `key` is the same whenever the same thing is asked for.

        Any failure leaves it open whether the provider made it: whoever asks must not ask again by itself.
        """
        reader, writer = await asyncio.open_unix_connection(self.address)
        try:
            asked = {"call": call, "key": key, "task": task, "index": index}
            writer.write(orjson.dumps(asked) + b"\n")
            await writer.drain()
            return ref_of(await reader.readline())
        finally:
            writer.close()


def ref_of(line: bytes) -> str:
    """What an answer says. PfsupError when it says nothing."""
    try:
        return str(orjson.loads(line)["ref"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise PfsupError(
            "cannot use the provider's answer: it names no ref; ask there what became of the call"
        ) from error
