"""The exit's side of UDP: one socket for each connection through the tunnel, connected to the target."""

import asyncio
from typing import cast

from tunnel.datagrams import DatagramSide
from tunnel.splice import Side

__all__ = ["IDLE_S", "open_datagrams"]

IDLE_S = 300.0  # longer than clients wait: they decide


async def open_datagrams(literal: str, port: int, *, idle_seconds: float = IDLE_S) -> DatagramSide:
    """A side that sends to this address and hears from nobody else. OSError if there can be none."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(lambda: _Socket(idle_seconds), remote_addr=(literal, port))
    return protocol.side


class _Socket(asyncio.DatagramProtocol):
    """Ends with its side. Empty datagrams are lost: asyncio sends none."""

    def __init__(self, idle_seconds: float) -> None:
        self._transport: asyncio.DatagramTransport
        self._is_full = False
        self.side = DatagramSide(self._send, self._ended, idle_seconds=idle_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.side.offer(data)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there, or the datagram was too large: the sender hears nothing, as with UDP."""

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.side.close()

    def _send(self, datagram: bytes) -> None:
        if self._is_full or self._transport.is_closing():
            self.side.dropped += 1  # the socket does not keep up
        else:
            self._transport.sendto(datagram)

    def _ended(self, side: Side, error: Exception | None) -> None:
        self._transport.close()
