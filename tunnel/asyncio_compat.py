"""The parts that our transports need and asyncio does not export: filling buffers, TLS and sending files."""

import asyncio
from asyncio import base_events, constants, transports
from ssl import SSLContext
from typing import cast

__all__ = ["SENDFILE_BY_COPYING", "FlowControlled", "fill", "sends_file", "start_tls"]


class FlowControlled(transports._FlowControlMixin):  # noqa: SLF001 - loop.sendfile takes only transports of this class
    """The base class of transports with flow control. It has slots: a compiled class that inherits from it crashes."""

    def set_extra_info(self, name: str, value: object) -> None:
        """Set the value that `get_extra_info(name)` returns."""
        self._extra[name] = value  # type: ignore[attr-defined]


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

    uvloop's own `start_tls` accepts only transports of uvloop.
    """
    loop = asyncio.get_running_loop()
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
