"""UDP ASSOCIATE of SOCKS 5 (RFC 1928, 7): carries a client's datagrams, each of which begins with its target."""

import asyncio
import socket
from typing import Any, cast

from tunnel import Attachment
from tunnel_client.forward.connects import Connects
from tunnel_client.forward.flows import Flows
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address
from tunnel_client.proxy.socks import encode_address, parse_address

__all__ = ["Association"]

_HEAD_BYTES = 3  # reserved, reserved, fragment
_FLOWS_MAX = 64


class Association(asyncio.DatagramProtocol):
    """Carries the datagrams of one client while its control connection lasts.

    It takes datagrams only from that client, and only from one of its ports: the one that its request named, or else
    the first one that it uses. Pieces of datagrams (FRAG) are dropped, as the RFC allows.
    """

    def __init__(
        self, attachment: Attachment, traffic: Traffic, client: str, port: int = 0, connects: Connects | None = None
    ) -> None:
        self.flows = Flows(attachment, traffic, flows_max=_FLOWS_MAX, connects=connects)
        self._client = client
        self._port = port  # 0 until it is known
        self._address: Any = None
        self._transport: asyncio.DatagramTransport | None = None
        self._is_full = False

    async def open(self, host: str) -> tuple[str, int]:
        """Listen on this local address. Return the address and the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, 0), family=family)
        found: tuple[str, int] = transport.get_extra_info("sockname")[:2]
        return found

    async def close(self) -> None:
        """End the association, because its control connection has ended."""
        if self._transport is not None:
            self._transport.close()
        await self.flows.close()

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if addr[0] != self._client or (self._port and addr[1] != self._port):
            return
        try:
            found = parse_address(data, _HEAD_BYTES) if len(data) > _HEAD_BYTES and not data[2] else None
        except ValueError:
            return
        if found is None or not found[0] or not found[1]:
            return
        host, port, end = found
        self._port, self._address = addr[1], addr
        head = bytes(_HEAD_BYTES) + encode_address(host, port)

        def deliver(datagram: bytes) -> None:
            self._deliver(head + datagram)

        self.flows.send((host, port), Address(host, port), data[end:], deliver, self)

    def error_received(self, exc: Exception) -> None:
        """Do nothing: the client has closed its port, and will end the association."""

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def _deliver(self, data: bytes) -> None:
        if self._transport is not None and not self._is_full and not self._transport.is_closing():
            self._transport.sendto(data, self._address)
