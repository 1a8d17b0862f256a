"""Charges a user for the processor time of a task, step by step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from tunnel.turns.queues import Turns

__all__ = ["Charged"]

_T = TypeVar("_T")


class Charged(Coroutine[Any, Any, _T]):
    """A coroutine. The time of each step, from one suspension to the next, is charged when the step ends."""

    def __init__(self, turns: Turns, user: str, work: Coroutine[Any, Any, _T]) -> None:
        self._turns = turns
        self._user = user
        self._work = work

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._work.throw, *error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, _T]:
        return self  # it has what `await` uses of a generator

    def __iter__(self) -> Charged[_T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        began = self._turns.meter.start()
        try:
            return step(*arguments)
        finally:
            self._turns.spent_since(self._user, began)
