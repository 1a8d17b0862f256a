"""Runtimes, which connect the sockets of this process with a relay. Most programs need only `configure`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Unpack
from weakref import WeakKeyDictionary, finalize

from tunnel import AttachmentStats, UnreachableError
from tunnel.ground.relay_options import RelayKeywords
from tunnel_client.borrowed.pair import muted_pair, renew, unmute
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings, find_settings
from tunnel_client.sockets.connector import Connector
from tunnel_client.sockets.loop_thread import LoopThread, loop_thread, make_immortal, on_fork, refuse_eventlet

__all__ = ["Connecting", "Runtime", "configure", "connecting", "default_runtime"]

LINGER_S = 10.0  # how long the end of the process waits for written bytes to arrive
GRACE_S = 1.0  # a loop that has not handled a timeout this long after its time counts as stuck


class Runtime:
    """Access to one relay, shared by any number of sockets in any thread. It attaches when the first of them connects.

    Without `settings`, the environment and the stored login at that time decide.
    """

    def __init__(self, settings: RelaySettings | None = None, *, linger: float = LINGER_S) -> None:
        self._given = settings
        # The lambda must not refer to `self`, or the weak dictionary would keep this object alive.
        made = _connecting[self] = Connecting(lambda: settings or _from_environment(), linger)
        finalize(self, made.retire).atexit = False

    @property
    def settings(self) -> RelaySettings:
        """The relay and our credentials there. Raises UnreachableError if no relay is known."""
        return self._given or _from_environment()

    def close(self) -> None:
        """Wait up to `linger` seconds until the bytes that the sockets wrote have arrived, then end the sockets.

        The next connect attaches again.
        """
        connecting(self).close()

    def stats(self) -> AttachmentStats | None:
        """Return statistics of the attachment and its connections, or None if there is no attachment."""
        return connecting(self).stats()


class Connecting:
    """The part of a runtime that sockets, patches and `tunnel run` use. Applications do not call it."""

    def __init__(self, settings: Callable[[], RelaySettings], linger: float) -> None:
        self._settings = settings
        self._linger = linger
        self._lock = threading.Lock()
        self._connector: Connector | None = None
        self._thread: LoopThread | None = None

    def connect(self, sock: socket.socket, host: str, port: int | None, timeout: float | None) -> None:
        """Connect this same socket to a target, or to a service if `port` is None. Wait until it is connected."""
        future = self.connect_soon(sock, host, port, timeout)
        try:
            future.result(None if timeout is None else timeout + GRACE_S)
        except BaseException as error:
            future.cancel()
            renew(sock)
            if isinstance(error, TimeoutError) and not error.args:  # not from the loop, which would have said more
                raise TimeoutError(
                    f"{host if port is None else f'{host}:{port}'}: no answer within {timeout} s"
                ) from None
            raise
        unmute(sock)

    def connect_soon(
        self, sock: socket.socket, host: str, port: int | None, timeout: float | None = None
    ) -> Future[None]:
        """Connect as `connect` does, but without waiting for the target.

        Until the future is done, the socket polls as neither readable nor writable.
        """
        connector, thread = self.use()
        near, skip = muted_pair(sock)
        return thread.submit(connector.open_and_join(host, port, timeout, near, skip))

    def use(self) -> tuple[Connector, LoopThread]:
        """Return the connector and its loop thread, for callers that do more than connect a socket.

        Raise OSError in a process of eventlet.
        """
        refuse_eventlet()
        with self._lock:
            if self._connector is None or self._thread is None:
                settings = self._settings()
                self._thread = loop_thread(_close_all)
                self._connector = Connector(settings, self._linger)
            return self._connector, self._thread

    def close(self) -> None:
        """Do the work of `Runtime.close`."""
        with self._lock:
            connector, thread = self._connector, self._thread
            self._connector = self._thread = None
        if connector is not None and thread is not None:
            with suppress(TimeoutError):
                thread.run(connector.close(), self._linger + 5.0)

    def retire(self) -> None:
        """Close as soon as the last socket has ended: the runtime has been dropped, so there will be no further ones.

        This takes no lock, since it may run within any other code of this thread.
        """
        connector, thread = self._connector, self._thread
        if connector is None or thread is None or not thread.is_alive():
            return
        _retired.add(self)
        thread.submit(connector.retire()).add_done_callback(lambda _: _retired.discard(self))

    def stats(self) -> AttachmentStats | None:
        """Do the work of `Runtime.stats`."""
        with self._lock:
            connector, thread = self._connector, self._thread
        return None if connector is None or thread is None else thread.run(connector.stats())

    def leave_to_parent(self) -> None:
        """In a forked child, leave attachment and loop thread to the parent. The next connect creates new ones."""
        self._lock = threading.Lock()
        connector, self._connector, self._thread = self._connector, None, None
        settings = self._settings
        self._settings = lambda: replace(settings(), trace=None)  # the thread that writes it is the parent's
        if connector is not None:
            make_immortal(connector)
            connector.leave_to_parent()


def connecting(runtime: Runtime) -> Connecting:
    """Return the part of this runtime that sockets use."""
    return _connecting[runtime]


_connecting: WeakKeyDictionary[Runtime, Connecting] = WeakKeyDictionary()
_retired: set[Connecting] = set()  # those that still have sockets, although their runtime was dropped
_configured: RelaySettings | None = None
_default: Runtime | None = None
_lock = threading.Lock()


def configure(
    *, relay: str | None = None, trace: Callable[..., None] | None = None, **given: Unpack[RelayKeywords]
) -> RelaySettings:
    """Choose the relay that the sockets of this process use.

    `relay` is its URL; `ca` and `cert` are files; `carrier` is auto, poll, link, stream or websocket. `token=None`
    means no token, `proxy=None` a direct connection. Settings that are not given come from TUNNEL_RELAY, TUNNEL_TOKEN,
    TUNNEL_CARRIER, TUNNEL_ENCRYPTION, TUNNEL_PEER_KEY and TUNNEL_INSECURE_HTTP, then from `tunnel login`; the proxy
    comes from the login, then from the usual variables. `insecure_http` lets the token go unencrypted to an http://
    relay on another machine. `headers`, `hostname` and `sni` are for a gateway before the relay; these, `links` and
    `pull_interval` are as in `tunnel.attach`. `encryption` is auto, require or off; `peer_key` is the key, or the keys,
    that exits and services must have. `trace` records what the sockets do (`tunnel.open_trace`); close it after the
    runtime. A forked child does not trace. Existing sockets keep their relay. Raises ValueError if a setting is wrong,
    UnreachableError if no relay is known.
    """
    global _configured, _default
    with _translated_errors():
        made = replace(find_settings(relay=relay, **given), trace=trace)
    with _lock:
        _configured = made
        _default = None
    return made


def default_runtime() -> Runtime:
    """Return the runtime of sockets that name none: with the settings of `configure`, if it was called."""
    global _default
    with _lock:
        if _default is None:
            _default = Runtime(_configured)
        return _default


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn the UsageError of the commands into a ValueError, or into an UnreachableError if no relay is known."""
    try:
        yield
    except UsageError as error:
        if "no relay" in str(error):
            text = "no relay is known: call tunnel_client.configure(relay=URL), or set TUNNEL_RELAY"
            raise UnreachableError(text) from None
        raise ValueError(str(error)) from None


def _from_environment() -> RelaySettings:
    with _translated_errors():
        return find_settings()


def _close_all() -> None:
    for each in (*_connecting.values(), *_retired):
        each.close()


def _forget_parent() -> None:
    global _lock
    _lock = threading.Lock()
    for each in (*_connecting.values(), *_retired):
        each.leave_to_parent()
    _retired.clear()


on_fork(_forget_parent)
