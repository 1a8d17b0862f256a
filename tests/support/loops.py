"""Tests that are coroutines: each runs in a loop of its own, and fails for errors that only the loop reports."""

import asyncio
import functools
import gc
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from tunnel.streams.asyncio_compat import QuietProtocol

__all__ = ["DEADLINE_S", "HANGING_S", "in_loop", "in_loop_within", "run", "until"]

DEADLINE_S = 150  # only a hanging test takes so long; a relay that dies at a bad moment can cost a backoff of 60 s

HANGING_S = 30  # for tests that take a second, and that a likely defect would make wait forever

_UNTIL_S = 60.0
_LOOK_S = 0.005  # between looks at a condition that another thread, a process or the time alone fulfils

P = ParamSpec("P")

# Servers that tests make with `asyncio.start_server`: a connection that its client resets is no failure of the test.
setattr(asyncio.streams, "StreamReaderProtocol", QuietProtocol)  # noqa: B010 - a plain assignment breaks types


def run(
    coroutine: Coroutine[Any, Any, None],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Run the coroutine to its end in a new loop."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        async with asyncio.timeout(deadline_s):
            await coroutine
        gc.collect()  # exceptions never retrieved are reported here, not in a later test

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(watched())
    if problems:  # pytest does not rewrite assertions in this file
        raise AssertionError(f"the loop saw: {problems}")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn a test that is a coroutine into a plain function."""
    return in_loop_within(DEADLINE_S)(test)


def in_loop_within(
    deadline_s: float,
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Return a decorator like `in_loop` for a test that a defect would make wait forever: it fails after this time."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
            run(test(*args, **kwargs), deadline_s=deadline_s)

        return wrapper

    return decorate


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, if only for one turn of the loop. Raise TimeoutError if it holds at no time, on a
    slow machine, too."""
    if condition():
        return
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(_UNTIL_S):
        if not hasattr(loop, "_selector"):  # another loop than asyncio's
            while not condition():  # noqa: ASYNC110 - these conditions have no event
                await asyncio.sleep(_LOOK_S / 5)
            return
        if not isinstance(loop._selector, _Looking):
            loop._selector = _Looking(loop._selector)
        held = loop.create_future()
        looks, look = loop._selector.looks, functools.partial(_look, condition, held, loop._ready)
        looks.append(look)
        try:
            await held
        finally:
            looks.remove(look)


def _look(condition: Callable[[], object], held: asyncio.Future[None], ready: deque[asyncio.Handle]) -> bool:
    """Look at the condition; return whether the wait is over. Then the task goes on before anything else runs, and so
    finds what the condition has found."""
    try:
        if not held.done() and condition():
            held.set_result(None)
            ready.appendleft(ready.pop())
    except Exception as error:
        held.set_exception(error)
    return held.done()


class _Looking:
    """The selector of a loop. It looks at conditions in each turn, before the loop waits: a task that looked at them
    would let the loop turn all the time, and take the processor from the other processes of the tests."""

    def __init__(self, selector: Any) -> None:
        self.looks: list[Callable[[], bool]] = []
        self._selector = selector

    def select(self, timeout: float | None) -> Any:
        if not self.looks:
            return self._selector.select(timeout)
        held = [look() for look in self.looks]
        most_s = 0.0 if any(held) else _LOOK_S
        return self._selector.select(most_s if timeout is None else min(timeout, most_s))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)
