"""Limits the name lookups of each user at an exit: a lookup occupies a thread until the system's resolver answers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Lookups"]

_T = TypeVar("_T")
_PER_USER = 2


class _Slots:
    """The free slots for one user's lookups, and the number of callers whose lookups run or wait."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_PER_USER)
        self.callers = 0


class Lookups:
    """Runs lookups, at most two of one user at a time."""

    def __init__(self) -> None:
        self._slots: dict[str, _Slots] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._slots)

    async def run(self, user: str, lookup: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of the lookup when it is the user's turn.

        A caller who is cancelled stops waiting, but the lookup counts until its thread is free.
        """
        slots = self._slots.setdefault(user, _Slots())
        slots.callers += 1
        try:
            await slots.free.acquire()
            if self._is_over:
                slots.free.release()
                raise asyncio.CancelledError
        except BaseException:
            self._leave(user, slots)
            raise
        task = asyncio.get_running_loop().create_task(lookup())

        self._tasks.add(task)

        def ended(task: asyncio.Task[_T]) -> None:
            self._tasks.discard(task)
            slots.free.release()
            self._leave(user, slots)
            if not task.cancelled():
                task.exception()  # otherwise asyncio would report an error that no caller waits for

        task.add_done_callback(ended)
        return await asyncio.shield(task)

    def abort(self) -> None:
        """Stop waiting for all lookups, and begin none of those whose turn has not come."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    def _leave(self, user: str, slots: _Slots) -> None:
        slots.callers -= 1
        if not slots.callers:
            self._slots.pop(user, None)
