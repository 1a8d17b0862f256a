"""The one private loop thread of this process: it starts with the first socket, and anew in a forked child."""

import asyncio
import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["LoopThread", "is_inside", "keep_for_good", "loop_thread", "new_loop", "on_fork", "under_gevent"]

_T = TypeVar("_T")


class _Inside(threading.local):
    """Threads that carry the tunnel itself: what they open is never led through it."""

    here = False


_inside = _Inside()


def is_inside() -> bool:
    """Whether the calling thread belongs to the tunnel."""
    return _inside.here


def under_gevent() -> bool:
    """Whether gevent has replaced sockets or threads in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and any(monkey.is_module_patched(name) for name in ("threading", "socket"))


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it exists, but not under gevent: it would block every greenlet of its thread."""
    if not under_gevent():
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()


class LoopThread:
    """A loop in a daemon thread; under gevent, in a greenlet. It ends with the process."""

    def __init__(self) -> None:
        self.loop = new_loop()
        # Names are resolved in threads; those, too, must not use the tunnel that they make possible.
        self._workers = ThreadPoolExecutor(4, "tunnel-resolver", initializer=self._enter)
        self.loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run it there, wait here. Whoever is interrupted while waiting cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run it there, without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Once, at the end of the process."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        self._workers.shutdown(wait=False)

    def _run(self) -> None:
        self._enter()
        self.loop.run_forever()
        self.loop.close()

    @staticmethod
    def _enter() -> None:
        _inside.here = True


_lock = threading.Lock()
_current: LoopThread | None = None
_at_exit: Callable[[], None] | None = None
_after_fork: list[Callable[[], None]] = []
_inherited: list[LoopThread] = []  # of the parent: kept, for its loop must not be closed here


def loop_thread(at_exit: Callable[[], None] | None = None) -> LoopThread:
    """That of this process. `at_exit` runs when the interpreter ends, before the thread does."""
    global _current, _at_exit
    with _lock:
        if _current is None:
            _current = LoopThread()
            processes = sys.modules.get("multiprocessing")
            if processes is not None and processes.parent_process() is not None:
                # Its children leave without what atexit has; this is run before.
                importlib.import_module("multiprocessing.util").Finalize(None, _end, exitpriority=0)
        if at_exit is not None and _at_exit is None:
            _at_exit = at_exit
            atexit.register(_end)
        return _current


def on_fork(forget: Callable[[], None]) -> None:
    """Call it in each forked child: it must forget what belongs to the parent's loop."""
    _after_fork.append(forget)


def _end() -> None:
    global _current
    thread = _current
    if thread is None:
        return  # a child that opened nothing, or it was done already
    if _at_exit is not None:
        _at_exit()
    _current = None
    thread.stop()


def _forget_parent() -> None:
    global _lock, _current
    _lock = threading.Lock()  # another thread may have held it at that moment
    if _current is not None:
        _inherited.append(_current)
        keep_for_good(_current.loop)
        _current = None
    for forget in _after_fork:
        forget()


def keep_for_good(thing: object) -> None:
    """Even at the end of the interpreter: a loop that counts as running complains when it is collected."""
    try:
        import ctypes
    except ImportError:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_forget_parent)
