"""The HTTP server: aiohttp with a deadline for headers, no decompression, no HTML error pages, and TLS."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from aiohttp import web

from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, ServiceLimits, TlsFiles

__all__ = ["RelayRunner", "contexts", "listen", "tls_context"]

_log = structlog.get_logger("server")
_LINGERING_S = 5.0  # time to read the rest of a refused body, so that a reset does not destroy the answer
_SHUTDOWN_S = 5.0  # time for running handlers to finish when the server stops
_BACKLOG = 1024
_READ_BUFFER_BYTES = 256 * 1024  # of a body; reading pauses at twice this size until the handler has read it


class RelayHandler(web.RequestHandler):
    """One HTTP connection, which is closed if the headers of a request do not arrive in time."""

    def __init__(self, *arguments: Any, header_seconds: float, loop: asyncio.AbstractEventLoop, **others: Any) -> None:
        super().__init__(*arguments, loop=loop, **others)
        self._header_seconds = header_seconds
        self._clock = loop
        self._deadline: asyncio.TimerHandle | None = None
        self._is_idle = True  # no request is being handled

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._is_idle and self._deadline is None:
            self._expect_headers()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def request_began(self) -> None:
        """Stop the deadline: all headers of a request have arrived."""
        self._is_idle = False
        self._stop()

    def request_ended(self) -> None:
        """Note that the request was answered; the next byte starts the deadline again."""
        self._is_idle = True

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not valid HTTP. Neither the answer nor the log quotes it, as it may hold a token."""
        _log.info("bad_request", address=request.remote, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer was sent already")
        response = web.Response(status=status, text="Bad Request" if status < 500 else "Internal Server Error")
        response.force_close()
        return response

    def _expect_headers(self) -> None:
        self._deadline = self._clock.call_later(self._header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if self._is_idle:
            self.force_close()

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(web.Server):
    """Creates a RelayHandler per connection and notifies it when its requests begin and end."""

    def __init__(self, plain: web.Server, header_seconds: float, **handler: Any) -> None:
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = plain.request_handler

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await answer(request)
            finally:
                if isinstance(request.protocol, RelayHandler):
                    request.protocol.request_ended()

        def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
            protocol.request_began()
            return plain.request_factory(message, payload, protocol, writer, task)

        super().__init__(handle, request_factory=make, handler_cancellation=True)
        self._header_seconds = header_seconds
        self._handler = handler

    def __call__(self) -> RelayHandler:
        loop = asyncio.get_running_loop()
        return RelayHandler(self, loop=loop, header_seconds=self._header_seconds, **self._handler)


class RelayRunner(web.AppRunner):
    """Runs an application with RelayHandler connections; `listen` binds it to addresses."""

    def __init__(self, app: web.Application, limits: ServiceLimits) -> None:
        super().__init__(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._limits = limits

    async def _make_server(self) -> web.Server:
        return _Server(
            await super()._make_server(),
            self._limits.header_seconds,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._limits.keepalive_seconds,
            lingering_time=_LINGERING_S,
            read_bufsize=_READ_BUFFER_BYTES,
        )


async def listen(runner: web.AppRunner, address: ListenAddress, tls: ssl.SSLContext | None = None) -> ListenAddress:
    """Serve on the address and return it with its actual port. Raise ConfigError if it cannot be bound."""
    before = len(runner.addresses)
    site = web.TCPSite(runner, address.host, address.port, ssl_context=tls, backlog=_BACKLOG)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}: choose another address") from None
    return ListenAddress(address.host, runner.addresses[before][1], tls is not None)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later. Raise ConfigError if a file cannot be used.

    With `client_ca`, the context accepts only clients whose certificate that authority signed.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls: {files.certificate} and {files.key} are not a certificate and its key: {error}"
        ) from None
    if files.client_ca:
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tls: {files.client_ca} holds no certificates: {error}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def contexts(config: RelayConfig) -> list[tuple[ListenAddress, ssl.SSLContext | None]]:
    """Return each listen address with its TLS context, or None for plain HTTP.

    An address without a scheme uses TLS if the configuration has a [tls] table.
    """
    context = tls_context(config.tls) if config.tls is not None else None
    return [(address, context if address.tls is not False else None) for address in config.listen]
