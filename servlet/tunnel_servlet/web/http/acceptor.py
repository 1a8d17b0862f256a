"""Accepts connections, with a deadline for TLS and, unlike asyncio's servers, with limits and spare descriptors."""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog

from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.access.proxies import HEAD_BYTES, UNIX, ProxyHeaderError, TrustedProxies, body_bytes, client_in
from tunnel_servlet.access.sources import source_of
from tunnel_servlet.web.http.payers import UNAUTHENTICATED
from tunnel_servlet.web.http.tls_input import TlsInput

__all__ = ["Acceptor", "bind", "listen", "listen_unix"]

_BACKLOG = 1024
_ACCEPTED = 8  # connections that are accepted in one turn of the event loop
_PAUSE_S = 0.1  # before the next attempt when there are no descriptors
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TOO_MANY = "raise connections_max or connections_per_address_max"


class Log(Protocol):
    """A structlog logger."""

    def info(self, event: str, *, address: str, text: str) -> object: ...


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of the host. Raise OSError if one cannot be bound."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(infos):
            sockets.append(listen(family, address))
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def listen_unix(path: str, mode: int) -> socket.socket:
    """Return a socket that listens at a path, for those whom the mode allows. A socket that an earlier process has left
    there is replaced. Raise OSError if that is not possible, or if another process listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a process that hangs accepts nothing
        try:
            probe.connect(path)
        except BlockingIOError:
            raise OSError(errno.EADDRINUSE, "another process listens there") from None
        except ConnectionRefusedError:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        else:
            raise OSError(errno.EADDRINUSE, "another process listens there")
    before = os.umask(0o777 & ~mode)  # the mode is right from the start, and no other file can get it
    try:
        return listen(socket.AF_UNIX, path)
    finally:
        os.umask(before)


def listen(family: int, address: tuple[object, ...] | str) -> socket.socket:
    """Return a socket that listens at one address. Raise OSError if the address cannot be bound."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


class _NoClientError(OSError):
    """A trusted proxy does not say in time for which client a connection is, or there is no room for that one."""


class Acceptor:
    """Accepts the connections of one listening socket, as long as `connections` admits them.

    A connection is counted from the start, also during its TLS handshake, which may take `tls_seconds`. While no user
    is known, `tls_payer` pays for the processor time of TLS. `serve` makes the connection's protocol from its
    `CountedConnection` and the address of its client. With `evicts`, a connection on which no valid token has come can
    be ended so that another is admitted. `spares` file descriptors are kept for times when the process has no other
    left.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[CountedConnection, tuple[str, int]], asyncio.Protocol],
        connections: Connections,
        *,
        tls: ssl.SSLContext | None,
        tls_seconds: float,
        turns: Turns | None = None,
        tls_payer: str = UNAUTHENTICATED,
        spares: int = 0,
        log: Log | None = None,
        too_many: str = _TOO_MANY,
        evicts: bool = False,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self._socket = listening
        self._serve = serve
        self._connections = connections
        self._tls = tls
        self._tls_seconds = tls_seconds
        self._turns = turns or Turns()
        self._tls_payer = tls_payer
        self._spares_max = spares
        self._spares: list[int] = []
        self._log = log or structlog.get_logger("server")
        self._too_many = too_many
        self._evicts = evicts
        self._proxies = proxies or TrustedProxies()
        self._keep_spares()
        self._opening: set[asyncio.Task[None]] = set()
        self._reading_heads: set[asyncio.Task[Any]] = set()  # those of them that wait for a PROXY header
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use this context for connections that come from now on. Has no effect on a listener without TLS."""
        if self._tls is not None:
            self._tls = context

    def close(self) -> None:
        """Stop accepting, and end the connections that no protocol serves yet."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            if self._socket.family == socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    os.unlink(self._socket.getsockname())
            self._socket.close()
        # Without TLS each task ends in its next turn. If it were cancelled, uvloop would go on opening the connection.
        if self._tls is not None:
            for task in self._opening:
                task.cancel()
        for task in self._reading_heads:
            task.cancel()
        while self._spares:
            os.close(self._spares.pop())

    def _resume(self) -> None:
        # A callback and not `sock_accept`: a task that is cancelled drops the connection that it was about to get.
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # all but _NO_DESCRIPTORS concern one connection, which its client has ended
                if error.errno in _NO_DESCRIPTORS and not self._give_spare():
                    self._say("no_descriptors", "", f"{error.strerror}: raise the limit of open files (ulimit -n)")
                    self._loop.remove_reader(self._socket)
                    self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                    return
                continue
            connection.setblocking(False)
            host, port = (UNIX, 0) if self._socket.family == socket.AF_UNIX else (str(address[0]), int(address[1]))
            source = source_of(host)
            counted = self._connections.admit(source, has_tls=self._tls is not None)
            if counted is None:
                connection.close()
                self._say("too_many_connections", source, self._too_many)
                self._keep_spares()
                continue
            task = self._loop.create_task(self._open(connection, counted, (host, port)))
            self._opening.add(task)
            if self._evicts:
                # As in `close`: without TLS, the task finds out in its next turn.
                end = task.cancel if self._tls is not None else partial(self._cancel_reading, task)
                counted.may_evict(partial(self._evict, counted, end))
            task.add_done_callback(partial(self._has_opened, connection, counted))

    async def _open(self, connection: socket.socket, counted: CountedConnection, client: tuple[str, int]) -> None:
        """Give the connection to its protocol, after its PROXY header and the TLS handshake if they are due."""
        if self._proxies.has_header and self._proxies.trusts(client[0]):
            client = await self._client_behind(connection, counted, client)
            if self._is_over(counted):
                counted.leave()
                connection.close()
                return
        if self._tls is None:
            transport, _ = await self._loop.connect_accepted_socket(partial(self._serve, counted, client), connection)
            self._let_evict(counted, transport)
            return
        tls_input = TlsInput(self._turns, self._tls_payer, counted)
        encrypted = await tls_input.shake_hands(connection, self._tls, self._tls_seconds)
        if tls_input.first.is_lost or self._is_over(counted):
            encrypted.abort()
            counted.leave()
            return
        protocol = self._serve(counted, client)
        encrypted.set_protocol(protocol)
        protocol.connection_made(encrypted)
        self._let_evict(counted, encrypted)
        if tls_input.first.data:
            protocol.data_received(tls_input.first.data)

    async def _client_behind(
        self, connection: socket.socket, counted: CountedConnection, proxy: tuple[str, int]
    ) -> tuple[str, int]:
        """Return the client that the PROXY header names, for which the connection counts from now on; the proxy itself
        if the header names none. Raise OSError if there is no room for it, or no valid header in time."""
        task = asyncio.current_task()
        assert task is not None
        self._reading_heads.add(task)
        try:
            async with asyncio.timeout(self._tls_seconds):
                head = await self._receive(connection, HEAD_BYTES)
                body = await self._receive(connection, body_bytes(head))
            client = client_in(head, body)
        except ProxyHeaderError as error:
            raise _NoClientError(f"a connection of a trusted proxy: {error}") from None
        except TimeoutError:
            raise _NoClientError(f"a trusted proxy sent no whole PROXY header in {self._tls_seconds:g} s") from None
        finally:
            self._reading_heads.discard(task)
        if client is None:
            return proxy
        if not counted.has_left and not counted.comes_from(source_of(client[0])):
            raise _NoClientError(self._too_many)
        return client

    async def _receive(self, connection: socket.socket, count: int) -> bytes:
        """Return exactly this number of bytes, and leave what follows. Raise ProxyHeaderError at an earlier end."""
        data = b""
        while len(data) < count:
            more = await self._loop.sock_recv(connection, count - len(data))
            if not more:
                raise ProxyHeaderError(f"its PROXY header was cut off after {len(data)} bytes")
            data += more
        return data

    def _is_over(self, counted: CountedConnection) -> bool:
        """Whether the listening socket was closed, or the connection evicted, while it was opened."""
        return self._socket.fileno() < 0 or counted.has_left

    def _let_evict(self, counted: CountedConnection, transport: asyncio.Transport) -> None:
        if self._is_over(counted):
            transport.abort()
        elif self._evicts:
            counted.may_evict(partial(self._evict, counted, transport.abort))

    def _cancel_reading(self, task: asyncio.Task[None]) -> None:
        if task in self._reading_heads:
            task.cancel()

    def _evict(self, counted: CountedConnection, end: Callable[[], object]) -> None:
        end()
        self._say("too_many_connections", counted.source, f"its oldest one without a token is closed: {self._too_many}")

    def _has_opened(self, connection: socket.socket, counted: CountedConnection, task: asyncio.Task[None]) -> None:
        """End the connection if no protocol serves it. The task may have been cancelled before its first step."""
        self._opening.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            counted.leave()
            connection.close()
        if isinstance(error, OSError):  # the TLS handshake failed; a timeout and ssl.SSLError are OSErrors
            event = "no_client" if isinstance(error, _NoClientError) else "no_tls_handshake"
            self._say(event, counted.source, str(error) or type(error).__name__)
        elif isinstance(error, Exception):
            self._loop.call_exception_handler({"message": "a connection was not served", "exception": error})
        self._keep_spares()

    def _say(self, event: str, address: str, text: str) -> None:
        self._log.info(event, address=address, text=text)

    # --- spare descriptors

    def _give_spare(self) -> bool:
        """Free a spare descriptor for the connection that waits; return whether there was one."""
        if not self._spares:
            self._keep_spares()
        if self._spares:
            os.close(self._spares.pop())
            return True
        return False

    def _keep_spares(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spares) < self._spares_max:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
