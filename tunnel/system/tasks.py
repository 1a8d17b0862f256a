"""A container for background tasks: it keeps them referenced while they run and can wait for their end."""

import asyncio

__all__ = ["KeptTasks"]


class KeptTasks:
    """Keeps strong references to running tasks. The event loop holds only weak ones, so a task could otherwise be
    garbage-collected while it runs."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep the task until it is done."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks, including those added meanwhile; return when none is left."""
        while self._tasks:
            self.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def done(self) -> None:
        """Return when all tasks are done, whatever their outcome."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
