"""Runtimes: what connects the sockets of this process with a relay. Most programs need only `configure`."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from tunnel import AttachmentStats, UnreachableError
from tunnel_client.borrowed.pair import parked_pair, renew, unpark
from tunnel_client.errors import UsageError
from tunnel_client.settings import UNSET, USER_TIMEOUT_S, RelaySettings, Unset, find_settings
from tunnel_client.sockets.connector import Connector
from tunnel_client.sockets.loop_thread import LoopThread, keep_for_good, loop_thread, on_fork

__all__ = ["Connecting", "Runtime", "configure", "connecting", "default_runtime"]

LINGER_S = 10.0  # at the end of the process, for what was written to arrive


class Runtime:
    """One relay for any number of sockets, from any thread. It attaches when the first of them connects.

    `settings`: without them, what `configure` or the environment says at that time.
    """

    def __init__(self, settings: RelaySettings | None = None, *, linger: float = LINGER_S) -> None:
        self._given = settings
        # The function must not refer to this object, or the weak dictionary would keep it alive.
        _connecting[self] = Connecting(lambda: settings or _from_environment(), linger)

    @property
    def settings(self) -> RelaySettings:
        """Which relay, and who we are. UnreachableError where nothing says it."""
        return self._given or _from_environment()

    def close(self) -> None:
        """End its sockets: what they wrote arrives, for `linger` seconds at most. Another connect begins anew."""
        connecting(self).close()

    def stats(self) -> AttachmentStats | None:
        """How its connections are now; None before the first of them."""
        return connecting(self).stats()


class Connecting:
    """What a runtime does for sockets, patches and `tunnel run`; applications do not call it."""

    def __init__(self, settings: Callable[[], RelaySettings], linger: float) -> None:
        self._settings = settings
        self._linger = linger
        self._lock = threading.Lock()
        self._connector: Connector | None = None
        self._thread: LoopThread | None = None

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
        connector, thread = self.use()
        near, skip = parked_pair(sock)
        return thread.submit(connector.open_and_join(host, port, timeout, near, skip))

    def use(self) -> tuple[Connector, LoopThread]:
        """What connects, and the thread in which it does: for more than connecting a socket."""
        with self._lock:
            if self._connector is None or self._thread is None:
                settings = self._settings()
                self._thread = loop_thread(_close_all)
                self._connector = Connector(settings, self._linger)
            return self._connector, self._thread

    def close(self) -> None:
        """As `Runtime.close`."""
        with self._lock:
            connector, thread = self._connector, self._thread
            self._connector = self._thread = None
        if connector is not None and thread is not None:
            with suppress(TimeoutError):
                thread.run(connector.close(), self._linger + 5.0)

    def stats(self) -> AttachmentStats | None:
        """As `Runtime.stats`."""
        with self._lock:
            connector, thread = self._connector, self._thread
        return None if connector is None or thread is None else thread.run(connector.stats())

    def leave_to_parent(self) -> None:
        """In a forked child: the parent has the attachment and the loop thread, this process begins anew."""
        self._lock = threading.Lock()
        connector, self._connector, self._thread = self._connector, None, None
        if connector is not None:
            keep_for_good(connector)
            connector.leave_to_parent()


def connecting(runtime: Runtime) -> Connecting:
    """What this runtime does for sockets."""
    return _connecting[runtime]


_connecting: WeakKeyDictionary[Runtime, Connecting] = WeakKeyDictionary()
_configured: RelaySettings | None = None
_default: Runtime | None = None
_lock = threading.Lock()


def configure(
    *,
    relay: str | None = None,
    token: str | Unset | None = UNSET,
    proxy: str | Unset | None = UNSET,
    ca: str | None = None,
    cert: str | None = None,
    carrier: str | None = None,
    user_timeout: float = USER_TIMEOUT_S,
) -> RelaySettings:
    """Say which relay the sockets of this process use.

    `relay` is its URL; `ca` and `cert` are files; `carrier` is auto, poll or link. `token=None` means no token,
    `proxy=None` a direct connection. Settings that are not given come from TUNNEL_RELAY, TUNNEL_TOKEN and
    TUNNEL_CARRIER, then from `tunnel login`; a proxy from the login, then from the usual variables. Existing sockets
    keep their relay. ValueError when a setting is wrong.
    """
    global _configured, _default
    with _in_words_of_a_library():
        made = find_settings(
            relay=relay, token=token, proxy=proxy, ca=ca, cert=cert, carrier=carrier, user_timeout=user_timeout
        )
    with _lock:
        _configured = made
        _default = None
    return made


def default_runtime() -> Runtime:
    """The runtime of sockets that name none."""
    global _default
    with _lock:
        if _default is None:
            _default = Runtime(_configured)
        return _default


@contextmanager
def _in_words_of_a_library() -> Iterator[None]:
    """A wrong setting is a ValueError, and no relay an OSError; commands say both in another way."""
    try:
        yield
    except UsageError as error:
        if "no relay" in str(error):
            text = "no relay is known: call tunnel_client.configure(relay=URL), or set TUNNEL_RELAY"
            unknown_relay = UnreachableError(text)
            unknown_relay.errno = errno.ENETUNREACH
            raise unknown_relay from None
        raise ValueError(str(error)) from None


def _from_environment() -> RelaySettings:
    with _in_words_of_a_library():
        return find_settings()


def _close_all() -> None:
    for each in list(_connecting.values()):
        each.close()


def _forget_parent() -> None:
    global _lock
    _lock = threading.Lock()
    for each in list(_connecting.values()):
        each.leave_to_parent()


on_fork(_forget_parent)
