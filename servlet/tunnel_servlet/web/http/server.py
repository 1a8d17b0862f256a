"""The HTTP server: aiohttp with a deadline for headers, no decompression, and no HTML error pages."""

import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

from tunnel.process.descriptors import allowed_connections
from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.config import ConfigError, ListenAddress, ServiceLimits
from tunnel_servlet.web.http.acceptor import Acceptor, bind, listen_unix
from tunnel_servlet.web.http.handler import DISCARD_S, RelayHandler

__all__ = [
    "DIRECT",
    "DirectRoute",
    "RelayRunner",
    "admin_connections",
    "allow_files",
    "client_connections",
    "listen",
]

_SHUTDOWN_S = 5.0  # time for running handlers to finish when the server stops; > DISCARD_S
_CONTINUE = "100-continue"
_ADMIN_CONNECTIONS_MAX = 16
_ADMIN_BYTES_MAX = 4 << 20
_OTHER_FILES = 256
_SPARE_DESCRIPTORS = 4
_CLIENTS_MODE = 0o660  # of a Unix socket: the relay's user and group, to which a proxy belongs
_ADMIN_MODE = 0o600
# When more than twice this number of bytes of a body wait for the handler, reading from the connection pauses, until
# fewer than this number wait.
_READ_BUFFER_BYTES = 64 * 1024


class DirectRoute(NamedTuple):
    """POST requests to this path, without a query, go to the handler at once, past the application's routes.

    They are most of a relay's requests. The application needs a route for this path, too: for all other requests.
    """

    path: str
    handler: Callable[[Any], Awaitable[web.StreamResponse]]


DIRECT = web.AppKey("direct", DirectRoute)


class _Server(web.Server):
    """Creates a RelayHandler per connection and notifies it when its requests begin and end."""

    def __init__(
        self,
        plain: web.Server,
        limits: ServiceLimits,
        turns: Turns | None,
        *,
        direct: DirectRoute | None,
        is_admin: bool,
        **handler: Any,
    ) -> None:
        self._answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = plain.request_handler

        def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            protocol.request_began()
            return plain.request_factory(message, payload, protocol, writer, task)

        super().__init__(self._handle, request_factory=make, handler_cancellation=True)
        self._limits = limits
        self._turns = turns
        self._direct = direct
        self._is_admin = is_admin
        self._handler = handler

    def handler(self, counted: CountedConnection, client: str = "") -> RelayHandler:
        """Return the protocol of a new connection. `client` is the address from which it comes, which its PROXY header
        names if it has one."""
        handler = RelayHandler(self, self._limits, self._turns, counted, **self._handler)
        handler.client = client
        return handler

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        try:
            expected = request.headers.get("Expect")
            direct = self._direct
            response: web.StreamResponse
            if expected is not None and expected.lower() != _CONTINUE:
                response = web.Response(status=417, text=f"the header Expect may only be {_CONTINUE}")
            elif direct is not None and expected is None and _goes_to(direct, request):
                response = await direct.handler(request)
            else:
                response = await self._answer(request)
            if isinstance(protocol, RelayHandler) and not protocol.counted.user and not self._is_admin:
                response.force_close()  # a connection without a valid token serves one request
            return response
        finally:
            if isinstance(protocol, RelayHandler):
                protocol.request_ended()


def _goes_to(direct: DirectRoute, request: web.BaseRequest) -> bool:
    return request.method == "POST" and request.rel_url.raw_path_qs == direct.path


class RelayRunner(web.AppRunner):
    """Runs an application with RelayHandler connections; `listen` binds it to addresses.

    `is_admin`: the clients are the operator's. They need no token, and the listener keeps spare descriptors for them.
    """

    def __init__(
        self,
        app: web.Application,
        limits: ServiceLimits,
        connections: Connections | None = None,
        turns: Turns | None = None,
        *,
        is_admin: bool = False,
        proxies: TrustedProxies | None = None,
    ) -> None:
        super().__init__(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._limits = limits
        self._connections = connections or client_connections(limits)
        self._turns = turns
        self._is_admin = is_admin
        self._proxies = proxies
        self._acceptors: list[Acceptor] = []

    async def _make_server(self) -> web.Server:
        return _Server(
            await super()._make_server(),
            self._limits,
            self._turns,
            direct=self.app.get(DIRECT),
            is_admin=self._is_admin,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._limits.keepalive_seconds,
            lingering_time=DISCARD_S if self._turns is None else 0.0,
            read_bufsize=_READ_BUFFER_BYTES,
        )

    def accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Serve the connections of a listening socket, which the runner closes."""
        server = self.server
        assert isinstance(server, _Server), "set the runner up first"
        acceptor = Acceptor(
            listening,
            lambda counted, client: server.handler(counted, client[0]),
            self._connections,
            tls=tls,
            tls_seconds=self._limits.tls_seconds,
            turns=self._turns,
            spares=_SPARE_DESCRIPTORS if self._is_admin else 0,
            evicts=True,
            proxies=self._proxies,
        )
        self._acceptors.append(acceptor)

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use this context for connections that come from now on to the addresses with TLS."""
        for acceptor in self._acceptors:
            acceptor.use_tls(context)

    async def cleanup(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()
        await super().cleanup()


def allow_files(limits: ServiceLimits) -> None:
    """Raise this process's own limit of open files to the number that `limits` can need, or as far as is allowed."""
    files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections_max * 4 // 3 + limits.exit_connections_max + _OTHER_FILES
    wanted += limits.public_connections_max
    if files_max != resource.RLIM_INFINITY:
        wanted = min(wanted, files_max)
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, files_max))


def client_connections(limits: ServiceLimits) -> Connections:
    """Return the limits of client connections, lowered if this process may not open enough files for them."""
    total_max = allowed_connections(limits.connections_max)
    per_address_max, per_user_max = limits.connections_per_address_max, limits.connections_per_user_max
    return Connections(total_max, per_address_max, per_user_max, limits.waiting_bytes_max)


def admin_connections() -> Connections:
    """Return the limits of connections to the admin listener."""
    return Connections(4 * _ADMIN_CONNECTIONS_MAX, _ADMIN_CONNECTIONS_MAX, _ADMIN_CONNECTIONS_MAX, _ADMIN_BYTES_MAX)


async def listen(
    runner: RelayRunner, address: ListenAddress, tls: ssl.SSLContext | None = None, *, setting: str = "listen"
) -> ListenAddress:
    """Serve on the address and return it with its actual port. Raise ConfigError if it cannot be bound; `setting` is
    the one that names the address."""
    mode = _ADMIN_MODE if setting == "admin" else _CLIENTS_MODE
    try:
        sockets = [listen_unix(address.host, mode)] if address.is_unix else await bind(address.host, address.port)
    except OSError as error:
        text = f"{setting}: cannot listen on {address}: {error.strerror or error}: choose another address"
        raise ConfigError(text) from None
    for listening in sockets:
        runner.accept(listening, tls)
    if address.is_unix:
        return address
    return ListenAddress(address.host, sockets[0].getsockname()[1], tls is not None)
