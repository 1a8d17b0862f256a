"""Long work of the broker: in parts, between which other tasks run; or unbroken, if a half of it would harm others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

__all__ = ["in_parts", "unbroken"]

_PART = 1_000  # about 2 ms each to sort, and to merge; a thread would not help: it would hold the interpreter as long
_T = TypeVar("_T")
_running: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks


async def in_parts(
    items: list[_T], keep: Callable[[_T], bool] | None = None, size: int = _PART
) -> AsyncIterator[list[_T]]:
    """Yield the items that `keep` accepts, sorted, `size` at a time."""
    runs = []
    for start in range(0, len(items), size):
        runs.append(sorted(filter(keep, items[start : start + size])))  # type: ignore[type-var]
        await asyncio.sleep(0)
    merged = merge(*runs)  # type: ignore[type-var]
    while part := list(islice(merged, size)):
        yield part
        await asyncio.sleep(0)


async def unbroken(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of some work. A caller that is cancelled stops waiting, and the work goes on."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_done)
    return await asyncio.shield(task)


def _done(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # mark it as retrieved: the caller may have gone
