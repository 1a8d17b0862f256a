"""A listening socket whose connections come from people without the tunnel. It opens and closes at once."""

import asyncio
import socket
import ssl
from collections.abc import Callable

import structlog

from tunnel_servlet.access.connections import Connections, Place, source_of
from tunnel_servlet.access.grants import PublicAddress
from tunnel_servlet.web.public_sides import PublicSide

__all__ = ["PublicListener", "bind_public"]

_log = structlog.get_logger("public")
_BACKLOG = 1024
_ACCEPTED = 8  # connections that are accepted in one turn of the event loop
_PAUSE_S = 0.1  # before the next attempt when accepting has failed: there are no descriptors
_TLS_S = 10.0


def bind_public(where: PublicAddress) -> socket.socket:
    """Return a listening socket. Raise OSError if the address cannot be bound."""
    sock = socket.socket(socket.AF_INET6 if where.address.version == 6 else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((str(where.address), where.port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class PublicListener:
    """Accepts connections as long as `connections` has places for them, and gives each to a side of its own.

    `serve` makes the side for a place and the address of the client.
    """

    def __init__(
        self,
        sock: socket.socket,
        serve: Callable[[Place, tuple[str, int]], PublicSide],
        connections: Connections,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = sock
        self._serve = serve
        self._connections = connections
        self._tls = tls
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        """Stop accepting, and end the connections that are still in their TLS handshake."""
        if self._pause is not None:
            self._pause.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("no_descriptors", text=f"{error.strerror}: raise the limit of open files (ulimit -n)")
                self._loop.remove_reader(self._socket.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._resume)
                return
            connection.setblocking(False)
            place = self._connections.admit(source_of(str(address[0])))
            if place is None:
                connection.close()
                _log.info("too_many_connections", address=address[0], text="of people without the tunnel")
                continue
            task = self._loop.create_task(self._open(connection, place, (str(address[0]), int(address[1]))))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _resume(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _open(self, connection: socket.socket, place: Place, client: tuple[str, int]) -> None:
        seconds = _TLS_S if self._tls is not None else None
        try:
            transport, side = await self._loop.connect_accepted_socket(
                lambda: self._serve(place, client),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError as error:  # of the handshake; a timeout and ssl.SSLError are OSErrors
            place.leave()
            connection.close()
            _log.info("no_tls_handshake", address=place.source, text=str(error) or type(error).__name__)
            return
        except BaseException:
            place.leave()
            connection.close()
            raise
        if not side.is_made:  # connection_made has failed; uvloop would neither read from the connection nor end it
            place.leave()
            transport.abort()
