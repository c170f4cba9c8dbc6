"""Waiting for a state, with a hang limit. The only place in the tests where something is polled."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
HANG_S = 30.0
_PAUSE_S = 0.005


def until(predicate: Callable[[], T], *, within_s: float = HANG_S, what: str = "") -> T:
    """Call `predicate` until it returns something true; return that. Fails after `within_s`."""
    limit = time.monotonic() + within_s
    while not (found := predicate()):
        if time.monotonic() > limit:
            raise AssertionError(f"still not so after {within_s:g} s: {what or predicate!r}")
        time.sleep(_PAUSE_S)  # noqa: TID251 - the one polling loop of the tests
    return found


async def auntil(predicate: Callable[[], Any], *, within_s: float = HANG_S, what: str = "") -> Any:
    """`until` for an event loop; `predicate` may be a coroutine function."""
    limit = time.monotonic() + within_s
    while True:
        found = predicate()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > limit:
            raise AssertionError(f"still not so after {within_s:g} s: {what or predicate!r}")
        await asyncio.sleep(_PAUSE_S)  # noqa: TID251 - the one polling loop of the tests
