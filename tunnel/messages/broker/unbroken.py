"""Work on the disk that goes on when the client that asked for it has gone, since a half of it would harm others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["unbroken"]

_T = TypeVar("_T")
_running: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks


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
