"""Runtimes: what connects the sockets of this process with a relay. Most programs need only `configure`."""

from __future__ import annotations

import argparse
import errno
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from tunnel import AttachmentStats, UnreachableError
from tunnel_client.borrowed.pair import parked_pair, renew, unpark
from tunnel_client.settings import RelaySettings, UsageError, add_relay_options, relay_settings
from tunnel_client.sockets.connector import Home
from tunnel_client.sockets.loop_thread import LoopThread, keep_for_good, loop_thread, on_fork

__all__ = ["Runtime", "configure", "default_runtime"]

LINGER_S = 10.0  # at the end of the process, for what was written to arrive


class Runtime:
    """One relay for any number of sockets, from any thread. It attaches when the first of them connects.

    `settings`: without them, what `configure` or the environment says at that time.
    """

    def __init__(self, settings: RelaySettings | None = None, *, linger: float = LINGER_S) -> None:
        self._given = settings
        self._linger = linger
        self._lock = threading.Lock()
        self._home: Home | None = None
        self._thread: LoopThread | None = None
        _runtimes.add(self)

    @property
    def settings(self) -> RelaySettings:
        """Which relay, and who we are. UnreachableError where nothing says it."""
        return self._given or _from_environment()

    def connect(self, sock: socket.socket, host: str, port: int | None, timeout: float | None) -> None:
        """Connect this very socket to a target, or with no port to a service; wait for it."""
        future = self.connect_soon(sock, host, port, timeout)
        try:
            future.result()
        except BaseException:
            future.cancel()
            renew(sock)
            raise
        unpark(sock)

    def connect_soon(
        self, sock: socket.socket, host: str, port: int | None, timeout: float | None = None
    ) -> Future[None]:
        """The same without waiting: until the future is done the socket polls as neither readable nor writable."""
        home, thread = self.use()
        near, skip = parked_pair(sock)
        return thread.submit(home.open_and_join(host, port, timeout, near, skip))

    def close(self) -> None:
        """End its sockets: what they wrote arrives, for `linger` seconds at most. Another connect begins anew."""
        with self._lock:
            home, thread = self._home, self._thread
            self._home = self._thread = None
        if home is not None and thread is not None:
            with suppress(TimeoutError):
                thread.run(home.close(), self._linger + 5.0)

    def stats(self) -> AttachmentStats | None:
        """How its connections are now; None before the first of them."""
        with self._lock:
            home, thread = self._home, self._thread
        return None if home is None or thread is None else thread.run(home.stats())

    def use(self) -> tuple[Home, LoopThread]:
        """What it has in the loop thread: for those who do more there than connect a socket."""
        with self._lock:
            if self._home is None or self._thread is None:
                settings = self.settings
                self._thread = loop_thread(_close_all)
                self._home = Home(settings, self._linger)
            return self._home, self._thread

    def _leave_to_parent(self) -> None:
        self._lock = threading.Lock()
        home, self._home, self._thread = self._home, None, None
        if home is not None:
            keep_for_good(home)
            home.leave_to_parent()


_runtimes: WeakSet[Runtime] = WeakSet()
_configured: RelaySettings | None = None
_default: Runtime | None = None
_lock = threading.Lock()


def configure(**settings: Any) -> RelaySettings:
    """Say which relay the sockets of this process use: relay (its URL), token, proxy, ca, cert, carrier,
    user_timeout.

    What is not given comes from TUNNEL_RELAY, TUNNEL_TOKEN and TUNNEL_CARRIER. Sockets that exist stay where they are.
    """
    global _configured, _default
    made = _from_environment(**settings)
    with _lock:
        _configured = made
        _default = None
    return made


def default_runtime() -> Runtime:
    """That of sockets which name none."""
    global _default
    with _lock:
        if _default is None:
            _default = Runtime(_configured)
        return _default


def _from_environment(**given: Any) -> RelaySettings:
    unknown = given.keys() - {"relay", "token", "proxy", "ca", "cert", "carrier", "user_timeout"}
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    parser = argparse.ArgumentParser(add_help=False)
    add_relay_options(parser)
    arguments = parser.parse_args([])  # what a command without options has
    for name in given.keys() - {"token"}:
        setattr(arguments, name, given[name] or ("none" if name == "proxy" else ""))
    try:
        found = relay_settings(arguments)
    except UsageError as error:
        if "no relay" in str(error):
            unknown_relay = UnreachableError(
                "no relay is known: call tunnel_client.configure(relay=URL), or set TUNNEL_RELAY"
            )
            unknown_relay.errno = errno.ENETUNREACH
            raise unknown_relay from None
        raise ValueError(str(error)) from None
    return replace(found, token=given["token"]) if "token" in given else found


def _close_all() -> None:
    for runtime in list(_runtimes):
        runtime.close()


def _forget_parent() -> None:
    global _lock
    _lock = threading.Lock()
    for runtime in list(_runtimes):
        runtime._leave_to_parent()


on_fork(_forget_parent)
