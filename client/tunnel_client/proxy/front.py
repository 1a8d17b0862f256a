"""A client's connection to the local proxy, until it is joined to one through the tunnel: its request and the answer.

The first byte tells the protocols apart: 5 and 4 are SOCKS, a letter is HTTP.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from tunnel import TunnelError
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.places import Address
from tunnel_client.proxy.http_connect import parse_http
from tunnel_client.proxy.requests import MalformedError, Parsed, ProxyRequest, why
from tunnel_client.proxy.socks import VERSION_4, VERSION_5, Socks5Request, parse_methods, parse_socks4, parse_socks5

__all__ = ["ProxyFront", "ProxyServices"]

_EARLY_BYTES_MAX = 64 * 1024  # when more follow a request, reading stops until it is answered
_TLS = 0x16  # the first byte of a handshake
_log = structlog.get_logger("tunnel")


class ProxyServices(Protocol):
    """The interface through which a front uses the command around it."""

    request_seconds: float
    """The time within which a whole request must arrive."""

    async def connect(
        self, host: str, port: int, ended: Callable[[Side, Exception | None], None], source: str
    ) -> TunnelSide:
        """Open a connection through the tunnel, when it is the turn of the client's address (`source`). Raises the
        errors of `open_connection`."""

    async def associate(self, request: Socks5Request, front: "ProxyFront") -> bytes:
        """Let datagrams pass until the front has left. Return the answer to the request."""

    def register(self, front: "ProxyFront") -> bool:
        """Register a new connection. Return False if there is no room for it."""

    def forget(self, front: "ProxyFront") -> None:
        """Forget a connection that has ended, and end its association."""


class ProxyFront(asyncio.Protocol):
    """A client's connection to the local proxy.

    It closes the connection with an answer if the target cannot be reached, and without one if no request arrives in
    time.
    """

    def __init__(self, beyond: ProxyServices) -> None:
        self._beyond = beyond
        self._data = bytearray()
        self._parse: Callable[[bytes], Parsed | None] | None = None
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._near: Side | None = None
        self.is_eof = False
        self._is_over = False
        self._is_control = False  # whether this is the control connection of a UDP ASSOCIATE

    def addresses(self) -> tuple[str, str]:
        """Return our address and the client's, without ports."""
        sock, peer = (self._transport.get_extra_info(name)[0] for name in ("sockname", "peername"))
        return sock, peer

    def abort(self) -> None:
        """End the connection with a reset."""
        if self._near is not None:
            self._near.abort_both()
        else:
            self._transport.abort()

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._beyond.register(self):
            self._is_over = True
            self._transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(self._beyond.request_seconds, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._data += data
        if self._dialling is None:
            self._read_on()
        if self._dialling is not None and len(self._data) > _EARLY_BYTES_MAX:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self.is_eof = True
        # A client whose request is being served may still wait for the answer. The end of a control connection, on the
        # other hand, ends its association.
        return self._dialling is not None and not self._is_control

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._dialling is not None:
            self._dialling.cancel()
        self._leave()

    # the request

    def _read_on(self) -> None:
        try:
            while self._data and self._dialling is None:
                if self._parse is None:
                    self._parse = _parser(self._data[0])
                parsed = self._parse(bytes(self._data))
                if parsed is None:
                    return
                del self._data[: parsed.size]
                if parsed.answer:
                    self._transport.write(parsed.answer)
                    self._parse = parse_socks5
                if parsed.request is not None:
                    self._stop_waiting()
                    self._dialling = asyncio.get_running_loop().create_task(self._serve(parsed.request))
        except MalformedError as error:
            _log.warning("not_understood", text=str(error))
            self._end(error.answer)

    def _too_late(self) -> None:
        self._deadline = None
        self._is_over = True
        self._transport.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # the answer

    async def _serve(self, request: ProxyRequest) -> None:
        target = str(Address(request.host, request.port))
        try:
            if isinstance(request, Socks5Request) and request.is_udp:
                self._is_control = True
                self._transport.write(await self._beyond.associate(request, self))
                return
            far = await self._beyond.connect(request.host, request.port, self._far_ended, self.addresses()[1])
        except (TunnelError, OSError, ValueError) as error:
            _log.warning("not_connected", target=target, text=str(error))
            self._end(request.refusal_answer(why(error), str(error)))
        else:
            self._join(request, far)

    def _join(self, request: ProxyRequest, far: TunnelSide) -> None:
        """Join the client and the connection through the tunnel. From here on, bytes go from one to the other."""
        if self._is_over or self._transport.is_closing():
            far.abort()
            return
        near = self._near = _NearSide(request.body_bytes, self._near_ended)
        near.connection_made(self._transport)
        self._transport.set_protocol(near)
        if granted := request.success_answer():
            self._transport.write(granted)
        if request.early:
            far.write(request.early)
        splice(near, far)
        if self._data:
            near.data_received(bytes(self._data))
            self._data.clear()
        if self.is_eof:
            near.eof_received()

    def _near_ended(self, side: Side, error: Exception | None) -> None:
        self._leave()

    def _far_ended(self, side: Side, error: Exception | None) -> None:
        if error is not None:
            _log.warning("lost", text=str(error))

    def _end(self, answer: bytes) -> None:
        """Send the answer, if there is one, and close the connection."""
        self._is_over = True
        self._stop_waiting()
        if answer:
            self._transport.write(answer)
        self._transport.close()

    def _leave(self) -> None:
        self._is_over = True
        self._beyond.forget(self)


class _NearSide(SocketSide):
    """Passes on only the bytes that belong to the request.

    Later bytes may be a request for another target. They get no answer before the connection is closed, so the client
    sends them again.
    """

    def __init__(self, body_bytes: int | None, ended: Callable[[Side, Exception | None], None]) -> None:
        super().__init__(ended=ended)
        self._left = body_bytes

    def data_received(self, data: bytes) -> None:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            super().data_received(data)


def _parser(first: int) -> Callable[[bytes], Parsed | None]:
    if first == VERSION_5:
        return parse_methods
    if first == VERSION_4:
        return parse_socks4
    if chr(first).isascii() and chr(first).isalpha():
        return parse_http
    if first == _TLS:
        raise MalformedError(
            "a client speaks TLS to this proxy: name the proxy there with http://, for https:// URLs too"
        )
    raise MalformedError("a client speaks neither SOCKS nor HTTP: give it this proxy as socks5h:// or http://")
