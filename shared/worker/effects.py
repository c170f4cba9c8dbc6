"""`with task.effect(name)`: the boundary of an outside call, persisted before it and after it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from ...config.errors import PfsupError
from .calls import EffectAnswer


class EffectPort(Protocol):
    """Where effects are written. Each form of worker has one of the two ways."""

    async def write_effect(self, state: str, name: str, ref: str | None) -> EffectAnswer: ...

    def write_effect_now(self, state: str, name: str, ref: str | None) -> EffectAnswer: ...


class Effect:
    """One outside call. `done`: an earlier run stored its result, so skip the call; `ref` is what that run left.

    Set `ref` to what the provider answered (its id for the call); it is stored with `done`.
    """

    __slots__ = ("done", "name", "ref", "voided")

    def __init__(self, name: str, ref: str | None, *, done: bool) -> None:
        self.name = name
        self.ref = ref
        self.done = done
        self.voided = False

    def __repr__(self) -> str:
        return f"<Effect {self.name} done={self.done} voided={self.voided}>"

    def void(self) -> None:
        """Say that it is *proved* that the call did not happen (refused before it began): it may be made again."""
        self.voided = True


class EffectScope:
    """`begun` is committed on entry; on leaving `done`, or `void` if said so.

    An exception leaves it begun: nobody can prove what the provider did, so the run ends `unknown` unless the function
    called `void()`. Raises Late when the row is another's, and then the call must not be made.
    """

    __slots__ = ("_effect", "_name", "_port", "_ref")

    def __init__(self, port: EffectPort, name: str, ref: str | None) -> None:
        self._port = port
        self._name = name
        self._ref = ref
        self._effect: Effect | None = None

    async def __aenter__(self) -> Effect:
        return self._entered(await self._port.write_effect("begun", self._name, self._ref))

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        effect, state = self._left(failed=kind is not None)
        if state is not None:
            await self._port.write_effect(state, effect.name, effect.ref)

    def __enter__(self) -> Effect:
        return self._entered(self._port.write_effect_now("begun", self._name, self._ref))

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        effect, state = self._left(failed=kind is not None)
        if state is not None:
            self._port.write_effect_now(state, effect.name, effect.ref)

    def _entered(self, answer: EffectAnswer) -> Effect:
        done = answer.verdict == "done"
        self._effect = Effect(self._name, answer.ref if done else self._ref, done=done)
        return self._effect

    def _left(self, *, failed: bool) -> tuple[Effect, str | None]:
        """The effect and what to write about it now; None: nothing."""
        if self._effect is None:
            raise PfsupError("cannot leave an effect that was not entered")
        if self._effect.done:
            return self._effect, None
        if self._effect.voided:
            return self._effect, "void"
        return self._effect, None if failed else "done"
