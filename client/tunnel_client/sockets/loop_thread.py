"""The one private loop thread of this process. It starts when it is first needed; a forked child starts its own."""

import asyncio
import atexit
import errno
import importlib
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = [
    "LoopThread",
    "is_inside",
    "loop_thread",
    "make_immortal",
    "new_loop",
    "on_fork",
    "refuse_eventlet",
    "under_gevent",
]

_T = TypeVar("_T")


class _Inside(threading.local):
    """Marks the threads that carry the tunnel itself: the sockets that they open never go through it."""

    here = False


_inside = _Inside()


def is_inside() -> bool:
    """Return whether the calling thread belongs to the tunnel."""
    return _inside.here


def under_gevent() -> bool:
    """Return whether gevent has replaced sockets or threads in this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and any(monkey.is_module_patched(name) for name in ("threading", "socket"))


def refuse_eventlet() -> None:
    """Raise OSError if eventlet has replaced threads or sockets in this process.

    The loop would run in a green thread and never let another one run, so every connect would outlive its timeout. A
    real thread is no way out: eventlet's locks do not work between threads.
    """
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(patcher.is_monkey_patched(name) for name in ("thread", "socket", "select")):
        raise OSError(
            errno.EOPNOTSUPP,
            "eventlet has replaced threads and sockets in this process, so it cannot carry a tunnel itself: start the "
            "program with `tunnel run`, or use `tunnel forward`",
        )


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop if it is installed, otherwise one of asyncio.

    Under gevent, always return one of asyncio: a loop of uvloop would block every greenlet of its thread.
    """
    if not under_gevent():
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.SelectorEventLoop()


class LoopThread:
    """An event loop in a daemon thread; under gevent, in a greenlet. It ends with the process."""

    def __init__(self) -> None:
        self.loop = new_loop()
        # These threads resolve names for the tunnel itself, so they must not use the tunnel either.
        self._workers = ThreadPoolExecutor(4, "tunnel-resolver", initializer=self._enter)
        self.loop.set_default_executor(self._workers)
        self._thread = threading.Thread(target=self._run, name="tunnel", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run the coroutine in the loop thread and wait for its result. A timeout or an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run the coroutine in the loop thread, without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop the thread. Called once, at the end of the process."""
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
_inherited: list[LoopThread] = []  # the parent's loop threads: kept, since a child must not close their loops


def loop_thread(at_exit: Callable[[], None] | None = None) -> LoopThread:
    """Return the loop thread of this process, and start it if necessary.

    The first `at_exit` that is given runs when the interpreter ends, before the thread stops.
    """
    global _current, _at_exit
    with _lock:
        if _current is None:
            _current = LoopThread()
            atexit.register(_end)
            processes = sys.modules.get("multiprocessing")
            if processes is not None and processes.parent_process() is not None:
                # Children of multiprocessing do not run atexit functions, but they do run this finalizer.
                importlib.import_module("multiprocessing.util").Finalize(None, _end, exitpriority=0)
        if at_exit is not None and _at_exit is None:
            _at_exit = at_exit
        return _current


def on_fork(forget: Callable[[], None]) -> None:
    """Call `forget` in each forked child, where it must forget what belongs to the parent's loop."""
    _after_fork.append(forget)


def _end() -> None:
    global _current
    thread = _current
    if thread is None:
        return  # this is a forked child that has opened no socket, or this function has run already
    if _at_exit is not None:
        _at_exit()
    _current = None
    thread.stop()


def _forget_parent() -> None:
    global _lock, _current
    _lock = threading.Lock()  # another thread may have held the lock during the fork
    if _current is not None:
        _inherited.append(_current)
        make_immortal(_current.loop)
        _current = None
    for forget in _after_fork:
        forget()


def make_immortal(thing: object) -> None:
    """Keep an object alive even at the end of the interpreter: a loop that counts as running warns when collected."""
    try:
        import ctypes
    except ImportError:
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_forget_parent)
