"""Looks names up in threads for which the end of a command does not wait: a name server may not answer for minutes."""

import asyncio
import socket
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, TypeAlias

from tunnel.event_loops import new_event_loop

__all__ = ["client_loop", "use_lookups"]

_Key: TypeAlias = tuple[Any, ...]  # the arguments of socket.getaddrinfo
_Found: TypeAlias = list[Any]


def client_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, as `new_event_loop` does, that looks names up in this way."""
    loop = new_event_loop()
    use_lookups(loop)
    return loop


def use_lookups(loop: asyncio.AbstractEventLoop) -> None:
    """Let this event loop look names up in this way.

    Loops use a pool of threads instead, and both the loop and the interpreter end only when the pool has ended.
    """
    loop.getaddrinfo = _Lookups(loop).look_up  # type: ignore[method-assign]


class _Lookups:
    """The lookups of a loop. Equal ones that overlap share a thread, since each repeat of a request asks again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[_Key, asyncio.Future[_Found]] = {}

    async def look_up(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the name that asyncio gives it
        proto: int = 0,
        flags: int = 0,
    ) -> _Found:
        """Do as `socket.getaddrinfo` does."""
        key = (host, port, family, type, proto, flags)
        found = self._pending.get(key)
        if found is None:
            found = self._pending[key] = self._loop.create_future()
            found.add_done_callback(partial(self._ended, key))
            Thread(target=self._work, args=(key, found), name="tunnel-lookup", daemon=True).start()
        return await asyncio.shield(found)

    def _work(self, key: _Key, found: "asyncio.Future[_Found]") -> None:
        try:
            addresses = socket.getaddrinfo(*key)
        except (OSError, UnicodeError) as error:
            settle = partial(_settle, found, None, error)
        else:
            settle = partial(_settle, found, addresses, None)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(settle)

    def _ended(self, key: _Key, found: "asyncio.Future[_Found]") -> None:
        self._pending.pop(key, None)
        found.cancelled() or found.exception()  # marked as seen: all callers may have been cancelled


def _settle(found: "asyncio.Future[_Found]", addresses: _Found | None, error: Exception | None) -> None:
    if found.done():
        return
    if error is not None:
        found.set_exception(error)
    else:
        found.set_result(addresses or [])
