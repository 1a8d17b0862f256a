"""A connection to the local proxy until it is joined with one through the tunnel: what it asks for, and the answer.

The first byte tells the protocols apart: 5 and 4 are SOCKS, a letter is HTTP.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from tunnel import TunnelError
from tunnel.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.places import Address
from tunnel_client.proxy.http_connect import parse_http
from tunnel_client.proxy.requests import MalformedError, Parsed, ProxyRequest, why
from tunnel_client.proxy.socks import VERSION_4, VERSION_5, Socks5Request, parse_methods, parse_socks4, parse_socks5

__all__ = ["Beyond", "ProxyFront"]

_EARLY_BYTES_MAX = 64 * 1024  # what may follow a request that is not answered yet
_TLS = 0x16  # the first byte of a handshake
_log = structlog.get_logger("tunnel")


class Beyond(Protocol):
    """What a front needs of the command around it."""

    request_seconds: float
    """For a whole request to come."""

    async def connect(self, host: str, port: int, ended: Callable[[Side, Exception | None], None]) -> TunnelSide:
        """A connection through the tunnel; errors as those of `open_connection`."""

    async def associate(self, request: Socks5Request, front: "ProxyFront") -> bytes:
        """Let datagrams pass until the front has left; the answer to the request."""

    def entered(self, front: "ProxyFront") -> bool:
        """Somebody has connected. False: there is no room."""

    def left(self, front: "ProxyFront") -> None:
        """The connection is over."""


class ProxyFront(asyncio.Protocol):
    """Ends by itself: with an answer when nothing can be reached, without one when nothing was asked for in time."""

    def __init__(self, beyond: Beyond) -> None:
        self._beyond = beyond
        self._data = bytearray()
        self._parse: Callable[[bytes], Parsed | None] | None = None
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._near: Side | None = None
        self.is_eof = False
        self._is_over = False
        self._is_control = False  # of UDP ASSOCIATE

    def addresses(self) -> tuple[str, str]:
        """Ours and the client's, without ports."""
        sock, peer = (self._transport.get_extra_info(name)[0] for name in ("sockname", "peername"))
        return sock, peer

    def abort(self) -> None:
        """End it with a reset."""
        if self._near is not None:
            self._near.abort_both()
        else:
            self._transport.abort()

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._beyond.entered(self):
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
        # Who has asked may still wait for the answer; a control connection is there for nothing but its end.
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
            far = await self._beyond.connect(request.host, request.port, self._far_ended)
        except (TunnelError, OSError, ValueError) as error:
            _log.warning("not_connected", target=target, text=str(error))
            self._end(request.refused(why(error), str(error)))
        else:
            self._join(request, far)

    def _join(self, request: ProxyRequest, far: TunnelSide) -> None:
        """From here on the two sides know each other alone."""
        if self._is_over or self._transport.is_closing():
            far.abort()
            return
        near = self._near = _NearSide(request.body_bytes, self._near_ended)
        near.connection_made(self._transport)
        self._transport.set_protocol(near)
        if granted := request.granted():
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
        """Say it, and nothing else."""
        self._is_over = True
        self._stop_waiting()
        if answer:
            self._transport.write(answer)
        self._transport.close()

    def _leave(self) -> None:
        self._is_over = True
        self._beyond.left(self)


class _NearSide(SocketSide):
    """Passes on what belongs to the request. What follows it was for another target: the client asks again, since the
    connection is closed without an answer to that."""

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
        raise MalformedError("a client speaks TLS to this proxy: name it http:// there, whatever it is used for")
    raise MalformedError("neither SOCKS nor HTTP")
