"""A local UDP port whose datagrams go to one UDP target. Each local sender has a flow, which brings the answers
back to it."""

import asyncio
import socket
from typing import Any, cast

from tunnel import Attachment
from tunnel_client.forward.flows import Flows
from tunnel_client.forward.listening import address_of, cannot_listen
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address

__all__ = ["DatagramForwarding"]


class DatagramForwarding(asyncio.DatagramProtocol):
    """Forwards the datagrams of a bound UDP socket to one target. Use it with `async with`."""

    def __init__(
        self, attachment: Attachment, target: Address, sock: socket.socket, traffic: Traffic, **flows: Any
    ) -> None:
        self.flows = Flows(attachment, traffic, **flows)
        self._target = target
        self._socket = sock
        self._transport: asyncio.DatagramTransport
        self._is_full = False

    async def __aenter__(self) -> "DatagramForwarding":
        try:
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, sock=self._socket)
        except OSError as error:
            raise cannot_listen(address_of(self._socket), error) from None
        return self

    async def stop_listening(self) -> None:
        """Free the local port, and end the flows: no answer could be delivered without the port."""
        self._transport.close()
        await self.flows.close()

    async def __aexit__(self, *exception: object) -> None:
        """Stop receiving datagrams, and end the flows."""
        await self.stop_listening()

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        def deliver(datagram: bytes) -> None:
            if not self._is_full and not self._transport.is_closing():
                self._transport.sendto(datagram, addr)

        self.flows.send(addr, self._target, data, deliver, addr[0])

    def error_received(self, exc: Exception) -> None:
        """Do nothing: a sender has closed its port, so that its flow will be idle and end by itself."""

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
