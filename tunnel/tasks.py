"""Tasks that nothing else refers to: kept while they run, and waited for at the end."""

import asyncio

__all__ = ["KeptTasks"]


class KeptTasks:
    """Keeps strong references to running tasks: the event loop holds only weak ones, so that a task could be collected
    while it runs."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep the task until it is done."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Cancel all of them, and those that come meanwhile; return when none is left."""
        while self._tasks:
            self.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def done(self) -> None:
        """Return when none is left, whatever became of them."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
