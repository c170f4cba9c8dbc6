"""Roles for tests of the parent, run by `pfsup start --app-dir tests/support` as kind = "children:Class".

Gates are files in $GATES_DIR: a role waits for `<name>.<gate>` to appear, and leaves a line in `<name>.<mark>` when it
got somewhere.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from pathlib import Path

from pfsup.config.errors import ConfigError
from pfsup.config.values import Settings
from pfsup.domains.contract import Link


class Calm:
    """Ready at once; notes each wake; ends when told to. The base of the others."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.gates = Path(os.environ["GATES_DIR"])

    def mark(self, what: str) -> None:
        """Append a line with our pid to `<name>.<what>`."""
        with (self.gates / f"{self.name}.{what}").open("a") as file:
            file.write(f"{os.getpid()}\n")

    async def gate(self, what: str) -> None:
        """Return once `<name>.<what>` exists."""
        never = asyncio.get_running_loop().create_future()
        while not (self.gates / f"{self.name}.{what}").exists():
            await asyncio.wait({never}, timeout=0.01)

    async def run(self, link: Link) -> None:
        """The work."""
        link.ready()
        link.phase("idle")
        await self.until_drained(link)

    async def until_drained(self, link: Link) -> None:
        """Note wakes until the drain."""
        drained = asyncio.ensure_future(link.drain.wait())
        while not drained.done():
            woken = asyncio.ensure_future(link.wake.wait())
            await asyncio.wait({drained, woken}, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            if link.wake.is_set:
                link.wake.clear()
                self.mark("woken")
        self.mark("drained")


class WakesPeer(Calm):
    """Asks the parent to wake `peer` whenever it is woken itself."""

    def mark(self, what: str) -> None:
        """Note it, and pass a wake on."""
        super().mark(what)
        if what == "woken":
            self.link.wake_peer("peer")

    async def run(self, link: Link) -> None:
        """The work."""
        self.link = link
        await super().run(link)


class Slow(Calm):
    """Drains only when its gate `go` opens."""

    async def run(self, link: Link) -> None:
        """The work."""
        await super().run(link)
        await self.gate("go")


class Deaf(Calm):
    """Ignores its drain and SIGTERM."""

    async def run(self, link: Link) -> None:
        """The work."""
        link.ready()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.mark("deaf")
        await asyncio.get_running_loop().create_future()


class CountsTerms(Calm):
    """Notes each SIGTERM, and drains only when its gate `go` opens."""

    async def run(self, link: Link) -> None:
        """The work."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.mark, "term")
        link.ready()
        await link.drain.wait()
        self.mark("drained")
        await self.gate("go")


class StuckInC(Calm):
    """Blocks its loop in one system call when it is woken: no beats, no Python signal handlers either."""

    def mark(self, what: str) -> None:
        """Get stuck on a wake."""
        super().mark(what)
        if what == "woken":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            select.select([], [], [], 600)


class LocksUpInDrain(Calm):
    """Takes a lock twice when it drains: only its last resort ends it."""

    async def run(self, link: Link) -> None:
        """The work."""
        link.ready()
        await link.drain.wait()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


class NeverReady(Calm):
    """Beats, and never says that it is ready."""

    async def run(self, link: Link) -> None:
        """The work."""
        await link.drain.wait()


class SlowBoot(Calm):
    """Blocks its loop for longer than a beat timeout before it is ready: a busy import."""

    async def run(self, link: Link) -> None:
        """The work."""
        select.select([], [], [], self.settings.supervisor.beat_timeout * 1.5)
        await super().run(link)


class Waits(Calm):
    """Waits with a remedy until its gate `go` opens."""

    async def run(self, link: Link) -> None:
        """The work."""
        link.waiting("schema pfsup is missing, run: pfsup migrate")
        opened = asyncio.ensure_future(self.gate("go"))
        drained = asyncio.ensure_future(link.drain.wait())
        await asyncio.wait({opened, drained}, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if not link.drain.requested:
            link.waiting(None)
            await super().run(link)


class Raises(Calm):
    """Crashes at once."""

    async def run(self, link: Link) -> None:
        """The work."""
        raise RuntimeError("told to crash")


class Misconfigured(Calm):
    """Ends with a configuration error."""

    async def run(self, link: Link) -> None:
        """The work."""
        raise ConfigError(["domains.x.color: wanted a colour, got 7"])


class ReadyThenGone(Calm):
    """Says ready and is gone in the same breath."""

    async def run(self, link: Link) -> None:
        """The work."""
        link.ready()
        self.mark("gone")
        os._exit(1)


class TalksThenGone(Calm):
    """When its gate `go` opens, says more than is read in one turn, then ready, and is gone."""

    async def run(self, link: Link) -> None:
        """The work."""
        self.mark("there")
        await self.gate("go")
        for number in range(100):
            link.waiting(f"{number} {'x' * 400}")
        link.ready()
        self.mark("gone")
        os._exit(1)


class LeavesHelper(Calm):
    """Forks a helper into its own group that ignores TERM; the helper's pid is in `<name>.helper`."""

    async def run(self, link: Link) -> None:
        """The work."""
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            while True:
                select.select([], [], [], 600)
        (self.gates / f"{self.name}.helper").write_text(f"{pid}\n")
        await super().run(link)


class ShowsItself(Calm):
    """Leaves its environment's names in `<name>.environ` and its open descriptors in `<name>.fds`."""

    async def run(self, link: Link) -> None:
        """The work."""
        (self.gates / f"{self.name}.environ").write_text("\n".join(os.environ))
        targets = [_target(int(entry.name)) for entry in Path("/proc/self/fd").iterdir()]
        (self.gates / f"{self.name}.fds").write_text("\n".join(targets))
        await super().run(link)


class LeavesOrphans(Calm):
    """Leaves twenty processes that nobody waits for but whoever adopts them."""

    async def run(self, link: Link) -> None:
        """The work."""
        for _ in range(20):
            _leave_an_orphan()
        await super().run(link)


def _leave_an_orphan() -> None:
    middle = os.fork()
    if middle == 0:
        os.fork()
        os._exit(0)
    os.waitpid(middle, 0)


class LeavesTasks(Calm):
    """Leaves a thread that never ends and a task that ignores its cancellation."""

    async def run(self, link: Link) -> None:
        """The work."""
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, _block)
        self.stubborn = asyncio.ensure_future(_stubborn())
        await super().run(link)


def _block() -> None:
    select.select([], [], [], 600)


async def _stubborn() -> None:
    never = asyncio.get_running_loop().create_future()
    while True:
        try:
            await asyncio.shield(never)
        except asyncio.CancelledError:
            continue


class Floods(Calm):
    """Sends garbage and long lines up its own link, past the shell."""

    async def run(self, link: Link) -> None:
        """The work."""
        link.ready()
        for fd in _sockets():
            os.set_blocking(fd, False)
            os.write(fd, b"\xff\xfe garbage\n[1,2]\n" + b'{"type": "unknown kind"}\n' + b"[" * 5000 + b"\n")
        await self.until_drained(link)


def _sockets() -> list[int]:
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
    return [fd for fd in numbers if _target(fd).startswith("socket:")]


def _target(fd: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""
