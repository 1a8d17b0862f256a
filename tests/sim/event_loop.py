"""An asyncio event loop on virtual time, for the tasks and timers of one life of an endpoint, or of the relay."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.violation import Violation

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs callbacks when `later` (delay in microseconds, action) runs them. Code that asks for the running loop must
    run within `running()`.

    It has no sockets. An error that a callback raises is a violation.
    """

    def __init__(self, now_us: Callable[[], int], later: Callable[[int, Callable[[], None]], object]) -> None:
        self._now_us = now_us
        self._later = later
        self._failure = ""

    @classmethod
    def of(cls, now_us: Callable[[], int], later: Callable[[int, Callable[[], None]], object]) -> VirtualLoop:
        """A loop. (mypy takes the class for an abstract one, since it lacks the methods that are never called.)"""
        return cls(now_us, later)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)
        if self._failure:
            raise Violation(self._failure)

    def kill(self) -> None:
        """Let no task of this loop go on, as at the death of its process."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            assert coroutine is not None
            with self.running():
                coroutine.close()

    # AbstractEventLoop

    def time(self) -> float:
        return self._now_us() / 1e6

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        return asyncio.Task(coro, loop=self, **options)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._later(0, lambda: self._run(handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.time() + delay, callback, args, self, context)
        self._later(max(0, round(delay * 1e6)), lambda: self._run(handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._failure = f"{context.get('message')}: {error!r}" if error is not None else self._failure

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle does not run."""

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            with self.running():
                handle._run()
