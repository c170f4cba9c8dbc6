"""The shell of a child: builds loop, link and role, runs the role, and says how it ended."""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import logging
import os
import signal
from typing import cast

from ...config.errors import EXIT_INTERNAL, EXIT_OK, ConfigError, PfsupError
from ...domains.contract import Identity, Role
from ...shared.frames import Message
from ..parent.spec import Start
from .lastresort import LastResort
from .link import ChildLink
from .logfile import LogFile
from .namelock import hold

log = logging.getLogger("pfsup.child")

RECOVERY_NICE = 10  # where cores are short dispatch goes first: its p99 beside six busy domains went from 4.6 to 2.9 ms
END_S = 10.0  # for leaving, when no drain set a deadline
OTHERS_S = 1.0  # for tasks that the role left running


def child_main(start: Start) -> int:
    """Run one child until its role ends; returns its exit code. Called in the forked process, after the bootstrap.

    The loop is not closed: closing waits without limit for threads, and the process ends right after this.
    """
    log_file = LogFile(start.settings.log, who=start.spec.name)
    if start.spec.group == "recovery":
        os.nice(RECOVERY_NICE)
    _take_dump_signal(log_file)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    last_resort = LastResort(log_file)
    return loop.run_until_complete(_live(start, log_file, last_resort))


def find_role(target: str) -> type[Role]:
    """The class that "module:Class" names. Raises ConfigError when there is none."""
    module, _, name = target.partition(":")
    try:
        return cast("type[Role]", getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError((f"kind: cannot find {target!r}: {error}; write it as module:Class",)) from error


async def _live(start: Start, log_file: LogFile, last_resort: LastResort) -> int:
    supervisor = start.settings.supervisor

    def drain(order: Message) -> None:
        last_resort.arm(order["within_s"])

    def reopen(_order: Message) -> None:
        log_file.reopen()
        _take_dump_signal(log_file)

    link = ChildLink(
        start.link,
        _identity(start),
        beat_s=supervisor.beat_interval,
        stop_s=supervisor.stop_timeout,
        orders={"drain": drain, "dump": _dump_tasks, "reopen": reopen},
    )
    _take_term(start, link)
    link.open(pid=os.getpid())
    code = await _work(start, link)
    if not link.drain.requested:
        last_resort.arm(END_S)
    await _end_others()
    link.bye(code)
    link.close()
    return code


async def _work(start: Start, link: ChildLink) -> int:
    try:
        role = find_role(start.spec.target)(start.settings, start.spec.name)
        if await hold(start.lock, link):
            await role.run(link)
    except PfsupError as error:
        log.error("%s ends: %s", start.spec.name, error)
        return error.exit_code
    except Exception:
        log.exception("%s ends by an exception", start.spec.name)
        return EXIT_INTERNAL
    return EXIT_OK


def _identity(start: Start) -> Identity:
    return Identity(
        instance=start.settings.supervisor.name,
        boot_id=start.boot_id,
        name=start.spec.name,
        generation=start.generation,
    )


def _take_term(start: Start, link: ChildLink) -> None:
    """From here on the loop takes SIGTERM; one that came before is not lost."""

    def term() -> None:
        if not link.drain.requested:  # the parent's message, which knows the deadline, may have come first
            link.order_drain(start.settings.supervisor.stop_timeout)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, term)
    if start.early:
        term()


def _take_dump_signal(log_file: LogFile) -> None:
    try:
        faulthandler.enable(log_file.stream)
        faulthandler.register(signal.SIGUSR1, file=log_file.stream, all_threads=True, chain=False)
    except (OSError, ValueError, AttributeError):
        log.warning("stacks cannot be written: the log has no descriptor")


def _dump_tasks(_order: Message) -> None:
    for task in asyncio.all_tasks():
        frames = task.get_stack(limit=8)
        places = " > ".join(f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in frames)
        log.warning("task %s: %s", task.get_name(), places or "no frame")


async def _end_others() -> None:
    """Cancel what the role left running, and name what does not end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _done, pending = await asyncio.wait(others, timeout=OTHERS_S)
        for task in pending:
            log.warning("task %s ignores its cancellation and is abandoned", task.get_name())


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
