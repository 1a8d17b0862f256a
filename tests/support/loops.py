"""Tests that are coroutines: each runs in a loop of its own, and fails for errors that only the loop reports."""

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

__all__ = ["DEADLINE_S", "in_loop", "run"]

DEADLINE_S = 150  # only a hanging test takes so long; a relay that dies at a bad moment can cost a backoff of 60 s

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

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper
