"""Tests that are coroutines: each runs in a loop of its own, and fails for errors that only the loop reports."""

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

__all__ = ["DEADLINE_S", "HANGING_S", "in_loop", "in_loop_within", "run"]

DEADLINE_S = 150  # only a hanging test takes so long; a relay that dies at a bad moment can cost a backoff of 60 s

HANGING_S = 30  # for tests without a relay, which take a second on a busy machine

P = ParamSpec("P")


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
