"""What the control socket understands. Verbs edit what is wanted; the loop does the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...config.errors import EXIT_FAILED, EXIT_USAGE
from ...shared.text import printable
from . import status
from .processes import Processes
from .table import Desired, State

Reply = dict[str, Any]

CHILD_VERBS = ("enable", "disable", "restart")
VERBS = ("status", "probe", "stop", "wake", *CHILD_VERBS)


class Verbs:
    """Answers requests by the table; `figures` are the supervisor's own for `status`, `stop` is its first signal."""

    def __init__(
        self, state: State, processes: Processes, *, figures: Callable[[], dict[str, Any]], stop: Callable[[], None]
    ) -> None:
        self._state = state
        self._processes = processes
        self._figures = figures
        self._stop = stop

    def answer(self, request: dict[str, Any]) -> Reply | None:
        """The reply, or None when the client is answered at the supervisor's end (`stop`)."""
        name = str(request.get("name", ""))
        match request.get("verb"):
            case "status":
                return _yes(**status.snapshot(self._state, self._processes.now, figures=self._figures()))
            case "probe":
                return _yes(live=status.is_live(self._state), ready=status.is_ready(self._state))
            case "stop":
                if self._state.shutdown is None:
                    self._stop()
                return None
            case "wake":
                return self._wake(name)
            case "enable" | "disable" | "restart" as verb:
                return self._want(verb, name)
            case other:
                return _no(f"cannot do {printable(str(other), limit=60)!r}: the verbs are {', '.join(VERBS)}")

    def wake(self, name: str) -> bool:
        """Wake a child. False if there is no such child or it does not run: it looks by itself when it starts."""
        return name in self._state.children and self._processes.tell(name, "wake")

    def _wake(self, name: str) -> Reply:
        return self._unknown(name) or _yes(woken=self.wake(name))

    def _want(self, verb: str, name: str) -> Reply:
        unknown = self._unknown(name)
        if unknown is not None:
            return unknown
        if self._state.shutdown is not None:
            return _no(f"cannot {verb} {name}: the supervisor is stopping", code=EXIT_FAILED)
        child = self._state.children[name]
        if verb == "restart" and child.desired is Desired.DOWN:
            return _no(f"cannot restart {name}: it is disabled; use: pfsup enable {name}", code=EXIT_FAILED)
        child.desired = {"enable": Desired.UP, "disable": Desired.DOWN, "restart": Desired.RESTART}[verb]
        child.overridden = child.desired is Desired.DOWN
        return _yes(name=name, desired=child.desired.value, generation=child.generation)

    def _unknown(self, name: str) -> Reply | None:
        if name in self._state.children:
            return None
        known = ", ".join(self._state.children)
        return _no(f"cannot find a child named {printable(name, limit=60)!r}: there are {known}")


def _yes(**fields: Any) -> Reply:
    return {"ok": True, **fields}


def _no(error: str, *, code: int = EXIT_USAGE) -> Reply:
    return {"ok": False, "code": code, "error": error}
