"""Incoming connections: services that an endpoint offers, and targets that an exit dials."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias

from tunnel.errors import DeniedError, TunnelError
from tunnel.ground.defaults import LIMIT_BYTES
from tunnel.streams.streams import StreamReader, StreamWriter, open_streams
from tunnel.streams.transport import MadeTransport, Transport
from tunnel.wire import RejectReason, Target

__all__ = [
    "ExitHandler",
    "ExitRequest",
    "Handler",
    "OfferedService",
    "Server",
    "ServiceBehind",
    "Sink",
    "dial_failure",
    "streams_sink",
]

_TEXT_BYTES_MAX = 1024  # of a refusal

Handler: TypeAlias = Callable[[StreamReader, StreamWriter], Awaitable[None] | None]
Sink: TypeAlias = Callable[[MadeTransport], None]  # called with each new connection, which it then owns
ExitHandler: TypeAlias = Callable[["ExitRequest"], Awaitable[None]]


class ServiceBehind(Protocol):
    """What a `Server` shows. `refused` is done when the relay refuses the name, `closed` when all has ended."""

    name: str
    refused: asyncio.Future[DeniedError]
    closed: asyncio.Future[None]

    @property
    def is_serving(self) -> bool: ...

    @property
    def refusal(self) -> DeniedError | None: ...

    def close(self) -> None: ...


class Server(asyncio.AbstractServer):
    """A service name under which the endpoint listens. Closing the server does not end its connections.

    The relay may refuse the name later, when its rules change; then the server is closed, and `refusal` says why.
    """

    def __init__(self, service: ServiceBehind) -> None:
        self._service = service

    def __repr__(self) -> str:
        return f"<tunnel.Server {self.name!r} {'serving' if self.is_serving() else 'closed'}>"

    @property
    def name(self) -> str:
        """The name of the service."""
        return self._service.name

    @property
    def refusal(self) -> DeniedError | None:
        """The error with which the relay refused the name, or None."""
        return self._service.refusal

    @property
    def sockets(self) -> tuple[()]:
        """An empty tuple: a service has no socket."""
        return ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._service.closed.get_loop()

    def is_serving(self) -> bool:
        return self._service.is_serving

    async def start_serving(self) -> None:
        """Do nothing: the server serves from the start."""

    async def serve_forever(self) -> None:
        """Return when the server is closed and its connections have ended. Cancelling closes the server.

        Raise DeniedError if the relay refuses the name.
        """
        try:
            ends: list[asyncio.Future[Any]] = [self._service.closed, self._service.refused]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
        finally:
            self.close()

    async def refused(self) -> DeniedError:
        """Return the error when the relay refuses the name; wait forever if it does not."""
        return await asyncio.shield(self._service.refused)

    def close(self) -> None:
        """Stop accepting connections."""
        self._service.close()

    async def wait_closed(self) -> None:
        """Return when the server is closed and its connections have ended."""
        await asyncio.shield(self._service.closed)


class OfferedService:
    """Does the work of a `Server`, which applications see: it takes connections, and learns of refusals."""

    def __init__(self, name: str, stop: Callable[[str], None], take: Sink) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.server = Server(self)
        self.is_serving = True
        self.refusal: DeniedError | None = None
        self.refused: asyncio.Future[DeniedError] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._take = take
        self._stop = stop
        self._transports: dict[Transport, None] = {}

    def refuse(self, error: DeniedError) -> None:
        """Close the server, because the relay has refused its name."""
        self.refusal = error
        if not self.refused.done():
            self.refused.set_result(error)
        self.close()

    def close(self) -> None:
        """Stop accepting connections."""
        if self.is_serving:
            self.is_serving = False
            self._stop(self.name)
            self._settle()

    def add(self, made: MadeTransport) -> None:
        """Take over a new connection. If the application raises, end it, and report the error to the loop."""
        self._transports[made.transport] = None
        try:
            self._take(made)
        except Exception as error:
            context = {"message": f"the server {self.name!r} could not take a connection", "exception": error}
            self.closed.get_loop().call_exception_handler(context)
            made.transport.abort()

    def remove(self, transport: Transport) -> None:
        """Forget a connection that has ended."""
        self._transports.pop(transport, None)
        self._settle()

    def _settle(self) -> None:
        if not self.is_serving and not self._transports and not self.closed.done():
            self.closed.set_result(None)


class ExitRequest:
    """A request to an exit to dial a target. Answer it once: with `accept`, `accept_streams` or `refuse`.

    `connection_id` is the exit's own id of the connection, as traces show it.
    """

    def __init__(
        self,
        target: Target,
        user: str,
        accept: Callable[[], MadeTransport],
        refuse: Callable[[RejectReason, str], None],
        connection_id: int = 0,
    ) -> None:
        self.connection_id = connection_id
        self.target = target
        self.user = user
        self.answered = False
        self._accept = accept
        self._refuse = refuse

    def accept(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> Transport:
        """Accept, because the target was reached, and attach the connection to a protocol. If there is no protocol,
        end the connection."""
        made = self._answer()
        try:
            made.begin(protocol_factory())
        except BaseException:
            made.transport.abort()
            raise
        return made.transport

    def accept_streams(self, *, limit: int = LIMIT_BYTES) -> tuple[StreamReader, StreamWriter]:
        """Accept, because the target was reached, and return the connection as streams."""
        return open_streams(self._answer(), limit=limit, server_side=True)

    def refuse(self, reason: RejectReason, text: str = "") -> None:
        """Refuse, because the target was not reached. No effect after an answer, or when the peer has given up.

        Of a long text, only the first KiB is sent, since a refusal that does not fit a packet would answer nothing.
        """
        if not self.answered:
            self.answered = True
            self._refuse(reason, text.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore"))

    def _answer(self) -> MadeTransport:
        if self.answered:
            raise RuntimeError("this request was already answered: call accept, accept_streams or refuse only once")
        made = self._accept()
        self.answered = True
        return made


def dial_failure(error: OSError) -> RejectReason:
    """Return the reason to refuse with after dialling raised `error`."""
    match error:
        case ConnectionRefusedError():
            return RejectReason.REFUSED
        case TimeoutError():
            return RejectReason.TIMED_OUT
        case socket.gaierror():
            return RejectReason.NAME_NOT_RESOLVED
    return RejectReason.UNREACHABLE


def streams_sink(handler: Handler, limit: int, keep: Callable[[asyncio.Task[None]], None]) -> Sink:
    """Return a sink that calls `handler` with the streams of each connection.

    If the handler returns an awaitable, it runs in a task of its own, which is passed to `keep`.
    """

    def take(made: MadeTransport) -> None:
        reader, writer = open_streams(made, limit=limit, server_side=True)
        outcome = handler(reader, writer)
        if outcome is not None:
            task = asyncio.get_running_loop().create_task(_run(outcome, writer))
            task.add_done_callback(lambda task: _forget(outcome, writer) if task.cancelled() else None)
            keep(task)

    return take


def _forget(handling: Awaitable[None], writer: StreamWriter) -> None:
    """End what was cancelled, perhaps before its first step: `_run` and the handler then run nothing at all."""
    if isinstance(handling, Coroutine):
        handling.close()
    writer.transport.abort()


async def _run(handling: Awaitable[None], writer: StreamWriter) -> None:
    """Run a handler. If it raises, close its connection; report the error to the loop unless it is a TunnelError."""
    try:
        await handling
    except TunnelError:
        writer.close()
    except Exception as error:
        context = {"message": "unhandled exception in a stream handler", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        writer.close()
