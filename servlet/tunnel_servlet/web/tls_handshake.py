"""The TLS handshake of a connection that was accepted: charged to a payer, who takes turns with others."""

import asyncio
import socket
import ssl
from typing import cast

from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection

__all__ = ["Handshake"]

_READ_BYTES = 8 * 1024  # read at once: a ClientHello has 300 to 2,000 bytes


class Handshake(asyncio.BufferedProtocol):
    """Stands between a connection and the event loop's TLS until the handshake has ended.

    A handshake takes the relay about a millisecond, and its client nothing if the client repeats stored bytes. So the
    processor time is charged to `payer`, and bytes of the client wait until it is the payer's turn. The sources of one
    payer take turns, too. `shake_hands` may be called once, and raises OSError if there is no TLS in the end.
    """

    def __init__(self, turns: Turns, payer: str, counted: CountedConnection) -> None:
        self.first = _FirstInput()
        self._turns = turns
        self._payer = payer
        self._counted = counted
        self._raw: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None  # the event loop's protocol, as soon as it exists
        self._early = bytearray()  # input that came before it
        self._buffer = bytearray()
        self._is_held = False
        self._is_over = False

    async def shake_hands(
        self, connection: socket.socket, context: ssl.SSLContext, seconds: float
    ) -> asyncio.Transport:
        """Return the encrypted transport, whose protocol is `first` until the caller sets another one."""
        loop = asyncio.get_running_loop()
        try:
            raw, _ = await loop.connect_accepted_socket(lambda: self, connection)
            if raw.is_closing():
                raise ConnectionResetError("the client has gone")
            starting = loop.create_task(
                loop.start_tls(
                    raw,
                    self.first,
                    context,
                    server_side=True,
                    ssl_handshake_timeout=seconds,
                    ssl_shutdown_timeout=seconds,
                )
            )
            loop.call_soon(self._step_between)  # after the first step of the task
            try:
                transport = await starting
            finally:
                starting.cancel()
        except BaseException:
            self._is_over = True
            if self._raw is not None:
                self._raw.abort()
            raise
        finally:
            self._turns.leave(self._payer, self, self._counted.source)
        self._step_aside()
        assert transport is not None
        return transport

    def _step_between(self) -> None:
        """Take the place of the event loop's protocol, which `start_tls` has just set."""
        if self._raw is None or self._is_over or self._raw.is_closing():
            return
        tls = self._raw.get_protocol()
        if tls is self:  # the task was cancelled before its first step
            return
        self._tls = cast("asyncio.BufferedProtocol", tls)
        self._raw.set_protocol(self)
        asyncio.get_running_loop().call_soon(self._begin)  # after the event loop has told its protocol the transport

    def _begin(self) -> None:
        if not self._is_over:
            self._turns.join(self._payer, self, self._counted.source)
            self._pass_on(b"")

    def _step_aside(self) -> None:
        self._is_over = True
        if self._raw is not None and self._tls is not None and not self._raw.is_closing():
            self._raw.set_protocol(self._tls)
            if self._is_held:
                self._raw.resume_reading()

    # --- UserInput

    def pause_input(self) -> None:
        """Read nothing until `resume_input`."""
        self._is_held = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_input(self) -> None:
        """Handle what has come, then read on."""
        self._is_held = False
        self._pass_on(b"")
        if self._raw is not None and not self._is_held and not self._raw.is_closing():
            self._raw.resume_reading()

    # --- BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        if self._is_over:  # cancelled before the event loop opened the connection
            self._raw.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(_READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._pass_on(self._buffer[:nbytes])

    def eof_received(self) -> bool | None:
        return None if self._tls is None else self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    def _pass_on(self, data: bytes | bytearray) -> None:
        """Give input to TLS, and charge what that costs. Keep it if it came too early or at the turn of others."""
        self._early += data
        if not self._early:
            return
        if self._tls is None or self._is_held:
            if self._raw is not None:
                self._raw.pause_reading()
            return
        started = self._turns.meter.start()
        while self._early:
            room = memoryview(self._tls.get_buffer(len(self._early)))
            size = min(len(room), len(self._early))
            room[:size] = self._early[:size]
            del room, self._early[:size]
            self._tls.buffer_updated(size)
        self._counted.spent_us += self._turns.spent_since(self._payer, started)


class _FirstInput(asyncio.Protocol):
    """Keeps what the client sends right behind the handshake, until the connection has its own protocol."""

    def __init__(self) -> None:
        self.data = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
