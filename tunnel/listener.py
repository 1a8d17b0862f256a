"""Connections that come in: services that an endpoint offers, and targets that an exit dials."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tunnel.errors import TunnelError
from tunnel.streams import LIMIT_BYTES, StreamReader, StreamWriter, open_streams
from tunnel.transport import Transport
from tunnel.wire import RejectReason, Target

__all__ = ["ExitHandler", "ExitRequest", "Handler", "Server", "Sink", "dial_failure", "serve_streams"]

Handler: TypeAlias = Callable[[StreamReader, StreamWriter], Awaitable[None] | None]
Sink: TypeAlias = Callable[[Transport], None]  # takes a new connection over
ExitHandler: TypeAlias = Callable[["ExitRequest"], Awaitable[None]]


class Server(asyncio.AbstractServer):
    """A service name that is listened for. Closing it leaves the connections that exist alone."""

    def __init__(self, name: str, stop: Callable[[str], None], take: Sink) -> None:
        self.name = name
        self.take = take
        self._stop = stop
        self._serving = True
        self._closed = asyncio.get_running_loop().create_future()
        self._transports: dict[Transport, None] = {}

    def __repr__(self) -> str:
        return f"<tunnel.Server {self.name!r} {'serving' if self._serving else 'closed'}>"

    @property
    def sockets(self) -> tuple[()]:
        """None: a service has no socket."""
        return ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._closed.get_loop()

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """It serves from the beginning."""

    async def serve_forever(self) -> None:
        """Return when the server was closed; cancelling closes it."""
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    def close(self) -> None:
        """Take no further connections."""
        if self._serving:
            self._serving = False
            self._stop(self.name)
            self._settle()

    async def wait_closed(self) -> None:
        """Return when it is closed and its connections have ended."""
        await asyncio.shield(self._closed)

    def add(self, transport: Transport) -> None:
        """A connection came."""
        self._transports[transport] = None
        self.take(transport)

    def remove(self, transport: Transport) -> None:
        """A connection, perhaps of this server, ended."""
        self._transports.pop(transport, None)
        self._settle()

    def _settle(self) -> None:
        if not self._serving and not self._transports and not self._closed.done():
            self._closed.set_result(None)


class ExitRequest:
    """Somebody wants to reach a TCP target. Answer once, with `accept` or `refuse`."""

    def __init__(
        self,
        target: Target,
        user: str,
        accept: Callable[[], Transport],
        refuse: Callable[[RejectReason, str], None],
    ) -> None:
        self.target = target
        self.user = user
        self.answered = False
        self._accept = accept
        self._refuse = refuse

    def accept(self, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> Transport:
        """The target was reached: the connection goes to a protocol."""
        transport = self._answer()
        transport.begin(protocol_factory())
        return transport

    def accept_streams(self, *, limit: int = LIMIT_BYTES) -> tuple[StreamReader, StreamWriter]:
        """The target was reached: the connection as streams."""
        return open_streams(self._answer(), limit=limit, server_side=True)

    def refuse(self, reason: RejectReason, text: str = "") -> None:
        """The target was not reached. Harmless when it was answered, or the other side has given up."""
        if not self.answered:
            self.answered = True
            self._refuse(reason, text)

    def _answer(self) -> Transport:
        if self.answered:
            raise RuntimeError("this request is answered")
        self.answered = True
        return self._accept()


def dial_failure(error: OSError) -> RejectReason:
    """The reason to give for an error that dialling raised."""
    match error:
        case ConnectionRefusedError():
            return RejectReason.REFUSED
        case TimeoutError():
            return RejectReason.TIMED_OUT
        case socket.gaierror():
            return RejectReason.NAME_NOT_RESOLVED
    return RejectReason.UNREACHABLE


def serve_streams(handler: Handler, limit: int, keep: Callable[[asyncio.Task[None]], None]) -> Sink:
    """Give each connection to `handler` as streams, in a task of its own if it is a coroutine function."""

    def take(transport: Transport) -> None:
        reader, writer = open_streams(transport, limit=limit, server_side=True)
        outcome = handler(reader, writer)
        if outcome is not None:
            keep(asyncio.get_running_loop().create_task(_run(outcome, writer)))

    return take


async def _run(handling: Awaitable[None], writer: StreamWriter) -> None:
    """A handler that raises has its connection closed, and the loop is told, unless it is only the connection's end."""
    try:
        await handling
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    except TunnelError:
        writer.close()
    except Exception as error:
        context = {"message": "unhandled exception in a stream handler", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        writer.close()
