"""One half of a link as an asyncio protocol: after the HTTP upgrade, one message each way, then batches (section 8).

The halves differ only in the first message: the endpoint sends an EXCHANGE that names its attachment, and the relay
answers. A subclass handles batches and receipts: `DialedLink` at the endpoint, `RelayLink` at the relay.

The same halves use a websocket (8.5), through a `WebSocketTransport`: each write is one message.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

from tunnel.carriers.halves.unsent_bytes import limit_unsent, set_tcp_option
from tunnel.exchange import BufferPool, LinkInput, LinkState
from tunnel.wire import ENVELOPE_BYTES, Buffer, decode_envelope

__all__ = ["LINK_LANE", "LINK_PROTOCOL", "SHARES", "LinkProtocol"]

LINK_PROTOCOL = "tunnel-link/1"  # the value of the Upgrade header
LINK_LANE = 0xFFFF  # the lane number in the envelopes that open a link; no lane has this number
SHARES = 1  # the serial in these envelopes if the link shares the load with others (8.7)

_GREETING_BYTES = 1024  # size of the read buffer until the link is open
_HIGH_BYTES = 64 * 1024  # with more than this in the transport's buffer, no further batch is written
_JOIN_BYTES = 16 * 1024  # up to this size one copy is cheaper than many buffers
_of_thread = threading.local()  # `buffers`: shared by all links of an event loop, which reads without Python's lock


class LinkProtocol(asyncio.BufferedProtocol):
    """One half of a link. A subclass handles the first message, input and the end of the connection.

    It is a `BufferedProtocol`, because uvloop copies received data for a plain `Protocol`.
    """

    def __init__(
        self, now: Callable[[], int], batch_bytes_max: int, first_bytes_max: int, *, takes_empty: bool = True
    ) -> None:
        if not hasattr(_of_thread, "buffers"):
            _of_thread.buffers = BufferPool()
        self.state = LinkState(batch_bytes_max, _of_thread.buffers, takes_empty=takes_empty)
        self.is_open = False  # the first messages were valid: batches may follow
        self.is_paused = False
        self.is_over = False
        self._now = now
        self._transport: asyncio.Transport
        self._greeting = memoryview(bytearray(_GREETING_BYTES))  # receives input until the link is open
        self._first = bytearray()
        self._first_bytes_max = first_bytes_max

    # for subclasses

    def opened_by(self, message: object) -> bool:
        """Handle the complete first message. If it is valid, set `is_open` and return True."""
        raise NotImplementedError

    def on_input(self, found: LinkInput) -> None:
        """Handle received batches and receipts. Check `state.closed` afterwards: the same input can break the link."""
        raise NotImplementedError

    def writable(self) -> None:
        """Continue writing, because the connection takes bytes again."""
        raise NotImplementedError

    def on_refused(self) -> None:
        """Close the link, because the first message is invalid or too large."""
        raise NotImplementedError

    # output

    def take_over(self, transport: asyncio.Transport, options: Mapping[str, int]) -> None:
        """Take the connection over. `options`: TCP options to set, in addition to those of every link."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"), options)
        transport.set_protocol(self)

    def write(self, buffers: list[Buffer]) -> None:
        """Write bytes to the connection, unless it is over."""
        if not buffers or self.is_over:
            return
        if len(buffers) > 1 and sum(map(len, buffers)) > _JOIN_BYTES:
            self._transport.writelines(buffers)
        else:
            self._transport.write(b"".join(buffers))

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        # A write that fails inside this callback makes asyncio's transports end twice, with an error.
        asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        if self.is_open and not self.is_paused and not self.is_over:
            self.writable()

    # input

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.space() if self.is_open else self._greeting

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_open:
            self.on_input(self.state.on_filled(nbytes, self._now()))
        elif not self.is_over:
            self.take(self._greeting[:nbytes])

    def message_received(self, data: Buffer) -> None:
        """Handle a message of a websocket: the whole first message, or one batch with its header."""
        if self.is_open:
            self.on_input(self.state.message(data, self._now()))
        elif not self.is_over and self._is_envelope(data):
            self.take(data)
        elif not self.is_over:
            self.on_refused()

    def _is_envelope(self, data: Buffer) -> bool:
        """Whether the data is as long as the envelope says that it is (7.1)."""
        return len(data) >= ENVELOPE_BYTES and len(data) == ENVELOPE_BYTES + int.from_bytes(data[8:12], "big")

    def eof_received(self) -> None:
        """Return None, so that asyncio closes the transport: a link has no half-close."""

    def take(self, data: Buffer) -> None:
        """Handle bytes that arrive before the link is open: part or all of the first message, and perhaps batches."""
        first = self._first
        first += data
        if len(first) < ENVELOPE_BYTES:
            return
        size = ENVELOPE_BYTES + int.from_bytes(first[8:12], "big")  # 7.1
        if size > self._first_bytes_max:
            self.on_refused()
            return
        if len(first) < size:
            return
        whole = bytes(first)
        self._first = bytearray()
        is_valid = self.opened_by(decode_envelope(whole[:size]))
        if self.is_open:
            self._greeting = memoryview(b"")  # thousands of links may be idle
        if is_valid and len(whole) > size:
            self.on_input(self.state.receive(memoryview(whole)[size:], self._now()))


def _tune(sock: socket.socket | None, options: Mapping[str, int]) -> None:
    """Set socket options, where the system has them, that keep kernel buffers small and detect a dead path early."""
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    limit_unsent(sock)
    for name, value in options.items():
        set_tcp_option(sock, name, value)
