"""A connection as a pair of asyncio streams. The writer can also `flush`: wait until the peer has every byte."""

import asyncio
from ssl import SSLContext
from typing import cast

from tunnel.ground.defaults import LIMIT_BYTES
from tunnel.streams.asyncio_compat import QuietProtocol, start_tls
from tunnel.streams.transport import MadeTransport, Transport

__all__ = ["StreamReader", "StreamWriter", "open_streams"]


StreamReader = asyncio.StreamReader


class StreamProtocol(QuietProtocol):
    """Feeds the reader; after `start_tls` it sits above TLS."""

    def use(self, transport: asyncio.Transport) -> None:
        """Switch to another transport, as after `start_tls`."""
        self._transport = transport
        self._over_ssl = transport.get_extra_info("sslcontext") is not None


class StreamWriter(asyncio.StreamWriter):
    """Writes to a connection.

    `drain()` waits for buffer space, `flush()` until everything is acknowledged, `wait_closed()` for the end.
    """

    def __init__(
        self,
        transport: Transport,
        protocol: StreamProtocol,
        reader: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
        *,
        server_side: bool = False,
    ) -> None:
        super().__init__(transport, protocol, reader, loop)
        self._tunnel = transport
        self._stream_protocol = protocol
        self._server_side = server_side

    async def drain(self) -> None:
        """Wait until there is buffer space. Raise ResetError when the peer will not read bytes that were written."""
        if self._tunnel.write_error is not None:
            raise self._tunnel.write_error.with_traceback(None)
        await super().drain()

    async def flush(self) -> None:
        """Wait until the peer's endpoint has acknowledged every byte written so far; raise if it never will.

        Acknowledged bytes are in the peer's receive buffer, as in TCP; its application may not have read them.
        """
        await self._tunnel.flush()

    async def start_tls(
        self,
        sslcontext: SSLContext,
        *,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> None:
        """Start TLS with the peer application. The relay sees only encrypted bytes."""
        await self.drain()
        upgraded = await start_tls(
            cast(asyncio.Transport, self.transport),
            self._stream_protocol,
            sslcontext,
            server_side=self._server_side,
            server_hostname=server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._transport = upgraded
        self._stream_protocol.use(upgraded)


def open_streams(
    made: MadeTransport, *, limit: int = LIMIT_BYTES, server_side: bool = False
) -> tuple[StreamReader, StreamWriter]:
    """Return streams over a transport; the caller must not use the transport directly."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = StreamProtocol(reader, loop=loop)
    made.begin(protocol)
    return reader, StreamWriter(made.transport, protocol, reader, loop, server_side=server_side)
