"""A thread for each run of a plain function: it holds up neither the loop nor the end of the process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(function: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Start `function` in a daemon thread and return its future. Cancelling the future does not end the thread.

    A daemon, unlike a thread of the standard executor: one that hangs would keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # pyright: ignore[reportArgumentType] - without an error it is a T

    def body() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as caught:
            error = caught if isinstance(caught, Exception) else RuntimeError(f"the function raised {caught!r}")
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # the loop has ended: the worker gave this thread up

    threading.Thread(target=body, name=name, daemon=True).start()
    return future
