"""The input of a connection with TLS: each record is charged to a payer, and waits until it is the payer's turn."""

import asyncio
import socket
import ssl
from typing import cast

from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection

__all__ = ["TlsInput"]

_READ_BYTES = 64 * 1024
_FIRST_READ_BYTES = 8 * 1024  # before the handshake has ended: a ClientHello has 300 to 2,000 bytes
_HEADER_BYTES = 5  # of a TLS record: type, version, length
# Processor time charged for one record. The event loop allocates 256 KiB for each, however small the record is.
_RECORD_US = 15
_PIECE_RECORDS = 32  # that TLS gets at once


class TlsInput(asyncio.BufferedProtocol):
    """Stands between a connection and the event loop's TLS.

    A handshake takes the relay about a millisecond, and its client nothing if the client repeats stored bytes. A record
    of one byte takes as long as one of 16 KiB. So the handshake's processor time and a fixed time for each record are
    charged to the user of the connection, or to `payer` while there is none. Input waits until it is the payer's turn;
    the sources of one payer take turns, too. `shake_hands` may be called once, and raises OSError if there is no TLS in
    the end.
    """

    def __init__(self, turns: Turns, payer: str, counted: CountedConnection) -> None:
        self.first = _FirstInput()
        self._turns = turns
        self._stranger = payer
        self._payer = ""  # under which the input has joined `turns`
        self._counted = counted
        self._raw: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None  # the event loop's protocol, as soon as it exists
        self._waiting = bytearray()  # input that came before it, or waits for the payer's turn
        self._buffer = bytearray()
        self._header = bytearray()  # of the next record, until it is complete
        self._record_bytes = 0  # that are still missing of the last record
        self._is_end_next = False  # the end of the input came, and waits until `_waiting` is handled
        self._has_shaken = False
        self._is_held = False
        self._has_paused = False
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
            if transport is None:  # the connection was lost between the end of the handshake and this step
                raise ConnectionResetError("the client has gone")
        except BaseException:
            self._is_over = True
            self._leave()
            if self._raw is not None:
                self._raw.abort()
            raise
        self._has_shaken = True
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
            self._counted.on_move = self._join
            self._join()
            self._pass_on()

    # --- UserInput

    def _join(self) -> None:
        """Take turns with the other inputs of the present payer."""
        was_held, self._is_held = self._is_held, False
        self._leave()
        self._payer = self._counted.user or self._stranger
        self._turns.join(self._payer, self, self._counted.source)
        if was_held and not self._is_held:
            asyncio.get_running_loop().call_soon(self.resume_input)

    def _leave(self) -> None:
        if self._payer:
            self._turns.leave(self._payer, self, self._counted.source)
            self._payer = ""

    def pause_input(self) -> None:
        """Handle nothing until `resume_input`."""
        self._is_held = True
        self._pause()

    def resume_input(self) -> None:
        """Handle what has come, then read on."""
        self._is_held = False
        if self._has_paused and self._raw is not None and not self._raw.is_closing():
            self._has_paused = False
            self._raw.resume_reading()  # before TLS gets input: then TLS may pause, and that must last
        self._pass_on()

    def _pause(self) -> None:
        if self._raw is not None and self._raw.is_reading():
            self._has_paused = True
            self._raw.pause_reading()

    # --- BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        if self._is_over:  # cancelled before the event loop opened the connection
            self._raw.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        size = _READ_BYTES if self._has_shaken else _FIRST_READ_BYTES
        if len(self._buffer) != size:
            self._buffer = bytearray(size)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._waiting += memoryview(self._buffer)[:nbytes]
        self._pass_on()
        if self._waiting:
            self._pause()

    def eof_received(self) -> bool | None:
        if self._tls is None:
            return None
        if self._waiting:
            self._is_end_next = True
            return True
        return self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._waiting.clear()
        self._leave()
        self._counted.on_move = None
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    # --- records

    def _pass_on(self) -> None:
        """Give the waiting input to TLS, and charge what that costs, while it is the payer's turn."""
        while self._waiting and self._tls is not None and not self._is_held:
            started = self._turns.meter.start()
            size, records = self._piece()
            self._feed(self._tls, size)
            self._turns.spend(self._payer, records * _RECORD_US)
            if not self._has_shaken:
                self._counted.spent_us += self._turns.spent_since(self._payer, started)
        if self._is_end_next and not self._waiting and self._tls is not None and not self._is_over:
            self._is_end_next = False
            if not self._tls.eof_received() and self._raw is not None:
                self._raw.close()

    def _feed(self, tls: asyncio.BufferedProtocol, size: int) -> None:
        while size and self._waiting:
            room = memoryview(tls.get_buffer(size))
            taken = min(len(room), size)
            room[:taken] = memoryview(self._waiting)[:taken]
            del room, self._waiting[:taken]
            size -= taken
            tls.buffer_updated(taken)

    def _piece(self) -> tuple[int, int]:
        """Return the size of the next piece of the waiting input, and the number of records that begin in it."""
        data, at, records = self._waiting, 0, 0
        while at < len(data) and records < _PIECE_RECORDS:
            if self._record_bytes:
                passed = min(self._record_bytes, len(data) - at)
                self._record_bytes -= passed
            else:
                passed = min(_HEADER_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + passed]
                if len(self._header) == _HEADER_BYTES:
                    self._record_bytes = int.from_bytes(self._header[3:], "big")
                    self._header.clear()
                    records += 1
            at += passed
        return at, records


class _FirstInput(asyncio.Protocol):
    """Keeps what the client sends right behind the handshake, until the connection has its own protocol."""

    def __init__(self) -> None:
        self.data = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
