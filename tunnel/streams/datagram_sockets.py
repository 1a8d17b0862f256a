"""UDP sockets at the far side: one connected socket per tunnel connection, at an exit or for a service."""

import asyncio
from typing import cast

from tunnel.streams.datagrams import DatagramSide
from tunnel.streams.splice import Side

__all__ = ["IDLE_S", "open_datagrams"]

IDLE_S = 300.0  # longer than the idle timeout of clients, so that the client decides when to end


async def open_datagrams(host: str, port: int, *, idle_seconds: float = IDLE_S) -> DatagramSide:
    """Return a side that exchanges datagrams with this address only. Raise OSError if no socket can be opened."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(lambda: _Socket(idle_seconds), remote_addr=(host, port))
    return protocol.side


class _Socket(asyncio.DatagramProtocol):
    """The socket of one side; each closes the other. Empty datagrams are lost, because uvloop, and asyncio before
    Python 3.13, do not send them."""

    def __init__(self, idle_seconds: float) -> None:
        self._transport: asyncio.DatagramTransport
        self._is_full = False
        self.side = DatagramSide(self._send, self._ended, idle_seconds=idle_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.side.offer(data)

    def error_received(self, exc: Exception) -> None:
        """Ignore the error, such as an unreachable port or a datagram that is too large: as UDP, we report no loss."""

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.side.close()

    def _send(self, datagram: bytes) -> None:
        if self._is_full or self._transport.is_closing():
            self.side.dropped += 1  # the socket is full or closing
        else:
            self._transport.sendto(datagram)

    def _ended(self, side: Side, error: Exception | None) -> None:
        self._transport.close()
