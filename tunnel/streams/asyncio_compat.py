"""The parts that our transports and servers need and asyncio does not export or do: buffers, TLS, files, quiet ends."""

import asyncio
import os
import socket
from asyncio import base_events, constants, sslproto, transports
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import cast

__all__ = [
    "SENDFILE_BY_COPYING",
    "FlowControlled",
    "QuietProtocol",
    "fill",
    "note_paused",
    "sends_file",
    "start_server",
    "start_tls",
]


class FlowControlled(transports._FlowControlMixin):  # noqa: SLF001 - loop.sendfile takes only transports of this class
    """The base class of transports with flow control. It has slots: a compiled class that inherits from it crashes."""

    write_error: ConnectionError | None = None  # set when bytes were written that the peer will never read

    def set_extra_info(self, name: str, value: object) -> None:
        """Set the value that `get_extra_info(name)` returns."""
        self._extra[name] = value  # type: ignore[attr-defined]


def note_paused(transport: FlowControlled, *, is_paused: bool) -> None:
    """Note whether the protocol of a transport was asked to pause writing: `loop.sendfile` reads it there."""
    transport._protocol_paused = is_paused  # type: ignore[attr-defined]  # noqa: SLF001


SENDFILE_BY_COPYING = constants._SendfileMode.FALLBACK  # noqa: SLF001
"""The `_sendfile_compatible` of a transport for which `loop.sendfile` reads the file and calls `write`."""


def sends_file(protocol: asyncio.BaseProtocol | None) -> bool:
    """Return whether this is the protocol that `loop.sendfile` puts in the place of the application's."""
    return isinstance(protocol, base_events._SendfileFallbackProtocol)  # type: ignore[attr-defined]  # noqa: SLF001


def fill(protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
    """Copy bytes into the buffers of a BufferedProtocol."""
    while len(data):
        buffer = memoryview(protocol.get_buffer(len(data))).cast("B")
        size = min(len(buffer), len(data))
        if not size:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:size] = data[:size]
        data = data[size:]
        protocol.buffer_updated(size)


async def start_tls(
    transport: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
) -> asyncio.Transport:
    """Upgrade a transport to TLS as `loop.start_tls` does, on any event loop.

    uvloop's own `start_tls` accepts only transports of uvloop. What the stream reader of `protocol` holds came after
    the last byte that the application read, so it goes to TLS, as later versions of asyncio do: a handshake that
    has begun goes on, and clear text is no part of what TLS protects.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(_give_to_tls, transport, protocol)  # before TLS begins, which asyncio does with `call_soon`
    upgraded = await base_events.BaseEventLoop.start_tls(
        cast(base_events.BaseEventLoop, loop),
        transport,
        protocol,
        context,
        server_side=server_side,
        server_hostname=server_hostname,
        ssl_handshake_timeout=ssl_handshake_timeout,
        ssl_shutdown_timeout=ssl_shutdown_timeout,
    )
    assert upgraded is not None
    return upgraded


def _give_to_tls(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Hand what the stream reader holds to the TLS protocol that has taken its place at the transport."""
    reader, tls = getattr(protocol, "_stream_reader", None), transport.get_protocol()
    if reader is not None and isinstance(tls, sslproto.SSLProtocol):
        tls._incoming.write(reader._buffer)  # type: ignore[attr-defined]  # noqa: SLF001
        reader._buffer.clear()  # noqa: SLF001
        reader._paused = False  # noqa: SLF001 - asyncio resumes the transport itself


class QuietProtocol(asyncio.StreamReaderProtocol):
    """Marks the error that ends a connection as retrieved, since calling `wait_closed()` is optional.

    asyncio does the same in `__del__`, but garbage collection may finalise the future first, which logs the error.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """End the stream."""
        super().connection_lost(exc)
        closed = cast("asyncio.Future[None]", self._get_close_waiter(None))  # type: ignore[attr-defined]
        if not closed.cancelled():
            closed.exception()


async def start_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    host: str,
    port: int,
    *,
    limit: int = 1 << 16,
    backlog: int = 100,
) -> asyncio.Server:
    """Serve connections as `asyncio.start_server` does. A peer that resets its connection puts nothing into our log.

    An OSError has the text of the system alone, without the address, which asyncio puts into it as a tuple.
    """
    loop = asyncio.get_running_loop()

    def make() -> QuietProtocol:
        return QuietProtocol(asyncio.StreamReader(limit=limit, loop=loop), handle, loop=loop)

    try:
        return await loop.create_server(make, host, port, backlog=backlog)
    except OSError as error:
        if error.errno is None or error.errno <= 0 or isinstance(error, socket.gaierror):
            raise
        raise OSError(error.errno, os.strerror(error.errno)) from None
