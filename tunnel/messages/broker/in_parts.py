"""Sorting a long list in parts, between which other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from heapq import merge
from itertools import islice
from typing import TypeVar

__all__ = ["in_parts"]

_PART = 1_000  # about 2 ms each to sort, and to merge; a thread would not help: it would hold the interpreter as long
_T = TypeVar("_T")


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
