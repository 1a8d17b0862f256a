"""An event loop whose clock jumps to the next timer: sleeps take no time, and times are exact.

It suits tests without sockets, threads and processes: it never waits for any of them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["HurriedLoop", "hurried"]

_T = TypeVar("_T")
_AT_ONCE = 0


class _Selector(selectors.DefaultSelector):
    """Passes the time that it was meant to wait on to the loop, and does not wait."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for something that never comes")
        self.passed_s += max(0.0, timeout)
        return super().select(_AT_ONCE)


class HurriedLoop(asyncio.SelectorEventLoop):
    """The loop; its time begins at 0."""

    def __init__(self) -> None:
        self._hurried = _Selector()
        super().__init__(self._hurried)

    def time(self) -> float:
        return self._hurried.passed_s


def hurried(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run the coroutine to its end in a new loop of this kind; return its result."""
    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        return runner.run(coroutine)
