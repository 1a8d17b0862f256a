"""Looks host names up: the only module of the client side that asks the system's resolver for a relay or a proxy.

A name server may not answer for minutes. So each lookup has a thread of its own, for which neither an event loop nor
the interpreter waits at its end, and equal lookups that overlap share it, whichever attachment or loop asks.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeAlias

__all__ = ["KEPT_S", "LOOKUPS", "Lookups"]

KEPT_S = 30.0  # how long addresses are used without asking again; the resolver does not say how long they are valid
_DOUBT_S = 1.0  # after a failure to connect: addresses that are older than this are looked up again
_WAIT_S = 0.2  # how long a caller who can have the last good addresses waits for newer ones
_AWAY_S = 5.0  # how long these are used without asking again, when the resolver did not answer, or with an error
_FAILED_S = 1.0  # how long a failure is the answer to further callers
_NAMES_MAX = 256

_Key: TypeAlias = tuple[Any, ...]  # the arguments of socket.getaddrinfo
_Found: TypeAlias = list[Any]
_Waiting: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[_Found]"]


class _Known:
    """Addresses that were found. They are used until `until_s`, and longer if no newer ones can be had."""

    def __init__(self, addresses: _Found, now_s: float) -> None:
        self.addresses = addresses
        self.found_s = now_s
        self.until_s = now_s + KEPT_S


class Lookups:
    """The lookups of a process. Its methods may be called in any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[_Key, _Known] = {}
        self._failed: dict[_Key, tuple[float, Exception]] = {}  # until when a failure counts
        self._pending: dict[_Key, tuple[float, list[_Waiting]]] = {}  # when it began, and who waits for it
        self._lock = Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget_pending)

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
        """Do as `socket.getaddrinfo` does, or return what it found before. Once a name was found, this never fails."""
        key = (host, port, family, type, proto, flags)
        known = self._known.get(key)
        if known is None:
            until_s, error = self._failed.get(key, (0.0, None))
            if error is not None and self._now() < until_s:
                raise error.with_traceback(None)
            return await self._ask(key)
        if self._now() < known.until_s:
            return known.addresses
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self._ask(key)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            known.until_s = max(known.until_s, self._now() + _AWAY_S)
            return known.addresses

    async def ask(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - the name that asyncio gives it
        proto: int = 0,
        flags: int = 0,
    ) -> _Found:
        """Do as `socket.getaddrinfo` does, without regard to what it found before."""
        return await self._ask((host, port, family, type, proto, flags))

    def doubt(self, host: str) -> None:
        """Learn that no connection to the addresses of this name can be opened: it may have others by now."""
        for key, known in list(self._known.items()):
            if key[0] == host:
                known.until_s = min(known.until_s, known.found_s + _DOUBT_S)

    def waiting_s(self, host: str) -> float | None:
        """Return for how long this name has been looked up; None if it is not, or if older addresses are known."""
        with self._lock:
            waits = ((key, began_s) for key, (began_s, _) in self._pending.items() if key[0] == host)
            began = [began_s for key, began_s in waits if key not in self._known]
        return self._now() - min(began) if began else None

    def _ask(self, key: _Key) -> "asyncio.Future[_Found]":
        loop = asyncio.get_running_loop()
        found: asyncio.Future[_Found] = loop.create_future()
        with self._lock:
            pending = self._pending.get(key)
            if pending is None:
                self._pending[key] = self._now(), [(loop, found)]
            else:
                pending[1].append((loop, found))
        if pending is None:
            Thread(target=self._work, args=(key,), name="tunnel-lookup", daemon=True).start()
        return found

    def _work(self, key: _Key) -> None:
        try:
            settle = self._settle_with(key, socket.getaddrinfo(*key))
        except (OSError, UnicodeError) as error:
            settle = self._fail_with(key, error)
        with self._lock:
            _, waiting = self._pending.pop(key, (0.0, []))
        for loop, found in waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, found)

    def _settle_with(self, key: _Key, addresses: _Found) -> "Callable[[asyncio.Future[_Found]], None]":
        with self._lock:
            self._known.pop(key, None)
            if len(self._known) >= _NAMES_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = _Known(addresses, self._now())
        return partial(_settle, addresses)

    def _fail_with(self, key: _Key, error: Exception) -> "Callable[[asyncio.Future[_Found]], None]":
        now_s = self._now()
        with self._lock:
            self._failed = {each: kept for each, kept in self._failed.items() if kept[0] > now_s}
            self._failed[key] = now_s + _FAILED_S, error
        return partial(_fail, error)

    def _forget_pending(self) -> None:
        """Forget the lookups that a fork has left without their threads."""
        self._lock = Lock()
        self._pending = {}


LOOKUPS = Lookups()
"""The lookups that all attachments of this process share."""


def _settle(addresses: _Found, found: "asyncio.Future[_Found]") -> None:
    if not found.done():
        found.set_result(addresses)


def _fail(error: Exception, found: "asyncio.Future[_Found]") -> None:
    if not found.done():
        found.set_exception(error)
