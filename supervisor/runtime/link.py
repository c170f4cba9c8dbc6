"""The child's end of its link: what a role sees of its parent, and the socket behind it.

Nothing here waits. A message that does not fit is replaced by the next of its kind and counted; a parent that does
not read can therefore never stop the work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...domains.contract import Identity
from ...shared.drain import Drain
from ...shared.figures import bounded
from ...shared.frames import Message
from ...shared.text import printable
from ...shared.wake import WakeSlot
from ..parent.wire import Wire

log = logging.getLogger("pfsup.child")

Order = Callable[[Message], None]


class ChildLink:
    """Implements `Link` over a socket. `orders` are called for message types other than wake and drain.

    Beats are sent by the loop that does the work, every `beat_s`, and at a change of phase: a blocked loop is silent.
    """

    def __init__(
        self, sock: socket.socket, identity: Identity, *, beat_s: float, stop_s: float, orders: Mapping[str, Order]
    ) -> None:
        self._identity = identity
        self._wake = WakeSlot()
        self._drain = Drain()
        self._stop_s = stop_s
        self._orders = orders
        self._wire = Wire(sock)
        self._beat = Beat(beat_s)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._said_ready = False

    def __repr__(self) -> str:
        return f"<ChildLink {self._identity.application_name} {self._beat!r} {self._drain!r}>"

    @property
    def identity(self) -> Identity:
        """Who this process is."""
        return self._identity

    @property
    def wake(self) -> WakeSlot:
        """Set when the parent passes on a wake-up."""
        return self._wake

    @property
    def drain(self) -> Drain:
        """Asked for by the parent's message, SIGTERM, or the end of the link."""
        return self._drain

    def open(self, *, pid: int) -> None:
        """Say hello, listen, and begin to beat."""
        self._loop.add_reader(self._wire.sock.fileno(), self._read)
        self._send("hello", v=1, pid=pid, generation=self._identity.generation)
        self._tick()

    def bye(self, code: int) -> None:
        """The last word: the exit code that follows."""
        self._send("bye", code=code)

    def close(self) -> None:
        """Stop beating and listening; what is unsent is tried once more."""
        if self._timer is not None:
            self._timer.cancel()
        self._wire.flush()
        self._loop.remove_reader(self._wire.sock.fileno())
        self._loop.remove_writer(self._wire.sock.fileno())

    def ready(self) -> None:
        """Say that the role does its work: it is not waiting any more. Said again it changes nothing."""
        self.waiting(None)
        if not self._said_ready:
            self._said_ready = True
            self._send("ready")
            self._loop.call_soon(self._beat_now)  # with the phase that the role names next

    def phase(self, name: str) -> None:
        """Name what the role does now; the next beat carries it."""
        self._beat.enter(printable(name))

    def waiting(self, reason: str | None) -> None:
        """Enter (with what is missing and the remedy) or leave (None) the waiting state. Repeats are not sent."""
        text = None if reason is None else printable(reason)
        if text != self._beat.waiting:
            self._beat.waiting = text
            self._send("waiting", reason=text)

    def report(self, figures: Mapping[str, Any]) -> None:
        """Replace the figures that the next beat carries."""
        self._beat.figures = dict(figures)

    def wake_peer(self, name: str) -> None:
        """Ask the parent to wake another child."""
        self._send(f"wake:{name}", type="wake", name=name)

    def _tick(self) -> None:
        self._beat_now()
        self._timer = self._loop.call_later(self._beat.every_s, self._tick)

    def _beat_now(self) -> None:
        self._send("beat", **self._beat.message())

    def _send(self, kind: str, **fields: Any) -> None:
        if not self._wire.outbox.put(kind, {"type": kind, **fields}):
            self._beat.dropped += 1
        self._flush()

    def _flush(self) -> None:
        self._wire.flush()
        wanted = not self._wire.outbox.is_empty and not self._wire.ended
        if wanted and not self._writing:
            self._loop.add_writer(self._wire.sock.fileno(), self._flush)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._wire.sock.fileno())
        self._writing = wanted

    def _read(self) -> None:
        for message in self._wire.read():
            self._obey(message)
        if self._wire.ended:
            self._loop.remove_reader(self._wire.sock.fileno())
            if not self._drain.requested:
                log.warning("the supervisor closed the link; draining, then ending")
            self.order_drain(self._stop_s)

    def _obey(self, message: Message) -> None:
        kind = str(message.get("type"))
        if kind == "wake":
            self._wake.wake()
        elif kind == "drain":
            within_s = message.get("deadline_s")
            self.order_drain(float(within_s) if isinstance(within_s, int | float) else self._stop_s)
        elif kind in self._orders:
            self._orders[kind](message)

    def order_drain(self, within_s: float) -> None:
        """Ask the role to end. Idempotent; a later order can only shorten the time."""
        self._drain.request(within_s)
        self._orders["drain"]({"within_s": self._drain.left_s()})


class Beat:
    """What a beat carries: phase and its age, figures, how many messages were replaced before they were sent."""

    __slots__ = ("_phase", "_since", "dropped", "every_s", "figures", "waiting")

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.waiting: str | None = None
        self.figures: dict[str, Any] = {}
        self.dropped = 0
        self._phase = "booting"
        self._since = time.monotonic()

    def __repr__(self) -> str:
        return f"<Beat phase={self._phase} waiting={self.waiting!r} dropped={self.dropped}>"

    def enter(self, phase: str) -> None:
        """Change the phase; its age begins at 0."""
        if phase != self._phase:
            self._phase, self._since = phase, time.monotonic()

    def message(self) -> dict[str, Any]:
        """The fields of a beat."""
        age_s = round(time.monotonic() - self._since, 3)
        figures = bounded(self.figures)
        return {"phase": self._phase, "phase_age_s": age_s, "figures": figures, "dropped": self.dropped}
