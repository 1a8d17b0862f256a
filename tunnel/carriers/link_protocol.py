"""One half of a link as an asyncio protocol: the first message each way after the 101, then batches (section 8).

Both halves are the same but for the first message: the endpoint sends an EXCHANGE that names it, the relay answers.
What a half does with batches and receipts is for its subclass: `DialedLink` at the endpoint, `RelayLink` at the relay.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping

from tunnel.exchange import BufferPool, LinkInput, LinkState
from tunnel.wire import ENVELOPE_BYTES, Buffer, decode_envelope

__all__ = ["LINK_LANE", "LINK_PROTOCOL", "LinkProtocol"]

LINK_PROTOCOL = "tunnel-link/1"  # of the Upgrade header
LINK_LANE = 0xFFFF  # of the envelopes that open a link: no lane has this number

_GREETING_BYTES = 1024  # read at once of the first message
_NOTSENT_BYTES = 128 * 1024  # the kernel takes no more than it can soon send: what waits can still be chosen
_HIGH_BYTES = 64 * 1024  # beyond it, in the transport, nothing more is given
_JOIN_BYTES = 16 * 1024  # up to it one copy is cheaper than many buffers
_OPTIONS_OF_LINUX = {"TCP_NOTSENT_LOWAT": 25, "TCP_USER_TIMEOUT": 18}  # some socket modules have no name for these
_buffers = BufferPool()  # of all links in this process


class LinkProtocol(asyncio.BufferedProtocol):
    """A `BufferedProtocol`, because uvloop copies received data for a plain `Protocol`. A subclass says what a first
    message, input and the end mean."""

    def __init__(self, now: Callable[[], int], batch_bytes_max: int, first_bytes_max: int) -> None:
        self.state = LinkState(batch_bytes_max, _buffers)
        self.is_open = False  # the first messages were good: batches come and go
        self.is_paused = False
        self.is_over = False
        self._now = now
        self._transport: asyncio.Transport
        self._greeting = memoryview(bytearray(_GREETING_BYTES))  # what comes before the first batch is read to it
        self._first = bytearray()
        self._first_bytes_max = first_bytes_max

    # for subclasses

    def opened_by(self, message: object) -> bool:
        """The first message has come whole. If it is good, set `is_open` and return True."""
        raise NotImplementedError

    def found(self, found: LinkInput) -> None:
        """Handle batches and receipts that have come. Check `state.closed` afterwards: the same input may break the
        link."""
        raise NotImplementedError

    def writable(self) -> None:
        """The connection takes bytes again."""
        raise NotImplementedError

    def refused(self) -> None:
        """The first message is invalid or too large: close the link."""
        raise NotImplementedError

    # output

    def take_over(self, transport: asyncio.Transport, options: Mapping[str, int]) -> None:
        """The connection is ours from now on; `options` are of TCP, beyond those that every link has."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"), options)
        transport.set_protocol(self)

    def write(self, buffers: list[Buffer]) -> None:
        """Hand bytes to the connection, if there is one."""
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
        if self.is_open:
            self.writable()

    # input

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.space() if self.is_open else self._greeting

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_open:
            self.found(self.state.filled(nbytes, self._now()))
        elif not self.is_over:
            self.take(self._greeting[:nbytes])

    def eof_received(self) -> None:
        """Return None, so that asyncio closes the transport: a link has no half-close."""

    def take(self, data: Buffer) -> None:
        """Bytes before the link is open: the first message, perhaps in portions, perhaps with batches after it."""
        first = self._first
        first += data
        if len(first) < ENVELOPE_BYTES:
            return
        size = ENVELOPE_BYTES + int.from_bytes(first[8:12], "big")  # 7.1
        if size > self._first_bytes_max:
            self.refused()
            return
        if len(first) < size:
            return
        whole = bytes(first)
        self._first = bytearray()
        if self.opened_by(decode_envelope(whole[:size])) and len(whole) > size:
            self.found(self.state.receive(memoryview(whole)[size:], self._now()))


def _tune(sock: socket.socket | None, options: Mapping[str, int]) -> None:
    """Keep little in the kernel, and notice a dead path long before TCP would by itself. Best effort."""
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_NOTSENT_LOWAT": _NOTSENT_BYTES, **options}.items():
        option = getattr(socket, name, None) or _OPTIONS_OF_LINUX.get(name)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
