"""Accepts connections, with limits, a deadline for TLS and spare descriptors, which asyncio's servers do not have."""

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import ssl
from collections.abc import Callable

import structlog

from tunnel_servlet.access.connections import Connections, Place, source_of

__all__ = ["Acceptor", "bind"]

_log = structlog.get_logger("server")
_BACKLOG = 1024
_ACCEPTED = 8  # connections that are accepted in one turn of the event loop
_PAUSE_S = 0.1  # before the next attempt when there are no descriptors
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of the host. Raise OSError if one cannot be bound."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


class Acceptor:
    """Accepts the connections of one listening socket, as long as `connections` has places for them.

    A connection has its place from the first moment on, thus also during its TLS handshake, which `tls_seconds` limit.
    `spares` file descriptors are kept for times when the process has no other left.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[Place], asyncio.Protocol],
        connections: Connections,
        *,
        tls: ssl.SSLContext | None,
        tls_seconds: float,
        spares: int = 0,
    ) -> None:
        self._socket = listening
        self._serve = serve
        self._connections = connections
        self._tls = tls
        self._tls_seconds = tls_seconds
        self._spares_max = spares
        self._spares: list[int] = []
        self._keep_spares()
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._accept_all())

    async def close(self) -> None:
        """Stop accepting, and end the connections that are still in their TLS handshake."""
        tasks = [self._task, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        while self._spares:
            os.close(self._spares.pop())

    async def _accept_all(self) -> None:
        for number in itertools.count(1):
            if number % _ACCEPTED == 0:
                await asyncio.sleep(0)  # `sock_accept` does not wait while the backlog holds connections
            try:
                connection, address = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS and not self._give_spare():
                    self._say("no_descriptors", "", f"{error.strerror}: raise the limit of open files (ulimit -n)")
                    await asyncio.sleep(_PAUSE_S)
                continue
            source = source_of(str(address[0]))
            place = self._connections.admit(source)
            if place is None:
                connection.close()
                self._say("too_many_connections", source, "raise connections_max or connections_per_address_max")
                self._keep_spares()
                continue
            opening = self._loop.create_task(self._open(connection, place))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, place: Place) -> None:
        """Give the connection to its protocol, after the TLS handshake if there is one."""
        seconds = self._tls_seconds if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._serve(place),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, TimeoutError) as error:  # of the handshake; ssl.SSLError is an OSError
            place.leave()
            connection.close()
            self._say("no_tls_handshake", place.source, str(error) or type(error).__name__)
        except BaseException:
            place.leave()
            connection.close()
            raise
        finally:
            self._keep_spares()

    def _say(self, event: str, source: str, text: str) -> None:
        _log.info(event, address=source, text=text)

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
