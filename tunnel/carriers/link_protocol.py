"""One link as an asyncio protocol: the handshake behind the 101, then batches both ways (section 8)."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import Protocol

from tunnel.exchange import Buffers, LinkInput, LinkState
from tunnel.wire import (
    ENVELOPE_BYTES,
    Answer,
    Buffer,
    Exchange,
    Status,
    decode_envelope,
    encode_envelope,
)

__all__ = ["HELLO_LANE", "LinkIO", "LinkOwner", "hello"]

HELLO_LANE = 0xFFFF  # of the envelopes that open a link: no lane has this number

_HELLO_BYTES_MAX = 64 * 1024
_GREETING_BYTES = 1024  # read at once of it
_NOTSENT_BYTES = 128 * 1024  # what the kernel keeps unsent; the bound of DESIGN section 6
_HIGH_BYTES = 64 * 1024  # what asyncio keeps beyond it before we stop writing
_JOIN_BYTES = 16 * 1024  # below it one copy is cheaper than many buffers
_TCP_DEAD_MS = 15_000  # unacknowledged by TCP for so long: the path is gone
_buffers = Buffers()  # of all links in this process


class LinkOwner(Protocol):
    """Who uses the link. Nothing is called after `link_lost`."""

    def link_open(self, link: "LinkIO") -> None: ...

    def link_input(self, link: "LinkIO", found: LinkInput) -> None: ...

    def link_writable(self, link: "LinkIO") -> None: ...

    def link_lost(self, link: "LinkIO", reason: str) -> None: ...


def hello(attachment_id: bytes, epoch: int, generation: int) -> bytes:
    """The first bytes of a link: whose it is."""
    exchange = Exchange(attachment_id, epoch, generation, HELLO_LANE, 0, 0, 0, 0)
    return b"".join(encode_envelope(exchange))


class LinkIO(asyncio.BufferedProtocol):
    """Not a Protocol: uvloop copies for those. `closed` is called once, with whatever ended the connection."""

    def __init__(
        self,
        owner: LinkOwner,
        now: Callable[[], int],
        closed: Callable[[Exception | None], None],
    ) -> None:
        self.state = LinkState(buffers=_buffers)
        self.is_open = False
        self.is_paused = False
        self._owner = owner
        self._now = now
        self._closed = closed
        self._lost = False
        self._transport: asyncio.Transport
        self._greeting = memoryview(bytearray(_GREETING_BYTES))  # what comes before the first batch is read to it
        self._hello = bytearray()

    # output

    def sockets(self) -> Iterable[socket.socket]:
        """The connection's own; once it has begun."""
        found: socket.socket | None = self._transport.get_extra_info("socket")
        return () if found is None else (found,)

    def begin(self, transport: asyncio.Transport, greeting: bytes, early: bytes) -> None:
        """The connection is ours: introduce ourselves."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        _tune(transport)
        transport.set_protocol(self)
        transport.write(greeting)
        if early:
            self._take(memoryview(early))

    @property
    def is_writable(self) -> bool:
        """Whether a batch may leave now."""
        return self.is_open and not self.is_paused

    def send(self, packets: list[Buffer], token: int) -> None:
        """Write a batch."""
        self._write(self.state.send(packets, token))

    def handle_timeout(self, now: int) -> None:
        """Write a lone receipt if it is due."""
        if self.is_open:
            self._write(self.state.handle_timeout(now))

    def abort(self) -> None:
        """Close the connection at once; `link_lost` follows."""
        self._transport.abort()

    def _write(self, buffers: list[Buffer]) -> None:
        if not buffers or self._lost:
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
            self._owner.link_writable(self)

    # input

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.space() if self.is_open else self._greeting

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_open:
            self._found(self.state.filled(nbytes, self._now()))
        else:
            self._take(self._greeting[:nbytes])

    def eof_received(self) -> None:
        """Closes: a link has no half."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(exc)
        self._end(self.state.closed or (str(exc) if exc is not None else "the connection was closed"))

    def _take(self, data: memoryview) -> None:
        """The greeting, and what is behind it."""
        rest = self._take_hello(data)
        if rest is not None and len(rest):
            self._found(self.state.receive(rest, self._now()))

    def _found(self, found: LinkInput) -> None:
        self._owner.link_input(self, found)
        if self.state.closed:
            self._refuse(self.state.closed)

    def _take_hello(self, data: memoryview) -> memoryview | None:
        """Collect the answer to our greeting; what is behind it, or None while there is no good one."""
        hello = self._hello
        hello += data
        if len(hello) < ENVELOPE_BYTES:
            return None
        size = ENVELOPE_BYTES + int.from_bytes(hello[8:12], "big")  # 7.1
        if len(hello) < size <= _HELLO_BYTES_MAX:
            return None
        message = decode_envelope(bytes(hello[:size]))
        if isinstance(message, Answer) and message.lane == HELLO_LANE:
            self.is_open = True
            self._hello = bytearray()
            self._owner.link_open(self)
            return memoryview(bytes(hello[size:]))
        self._refuse(message.text if isinstance(message, Status) else "not a relay's answer to a link")
        return None

    def _refuse(self, reason: str) -> None:
        self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self.is_open = False
            self._owner.link_lost(self, reason)


def _tune(transport: asyncio.Transport) -> None:
    """Keep little in the kernel, and notice a dead path long before TCP would by itself. Best effort."""
    found = transport.get_extra_info("socket")
    if found is None:
        return
    options = (
        (socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), _NOTSENT_BYTES),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), _TCP_DEAD_MS),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):
            found.setsockopt(level, name, value)
