"""The relay's end of a link on aiohttp: after 101 the TCP connection is taken over, and carries batches (section 8).

The first message on it is an EXCHANGE without payload (lane 0xFFFF, number 0) that names id, epoch and generation; the
relay answers with an ANSWER (lane 0xFFFF, number 0, serial 0), or with a STATUS and the end.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from tunnel.exchange import Buffers, LinkInput, LinkPace, LinkState
from tunnel.wire import (
    ENVELOPE_BYTES,
    Answer,
    Buffer,
    Exchange,
    Message,
    Status,
    StatusCode,
    decode_envelope,
    encode_envelope,
    parse_frames,
)
from tunnel_servlet.access.tokens import Identity
from tunnel_servlet.web.host import now_us

if TYPE_CHECKING:
    from tunnel_servlet.web.relay import Relay

__all__ = ["LINK_LANE", "LINK_PROTOCOL", "serve_link"]

LINK_PROTOCOL = "tunnel-link/1"
LINK_LANE = 0xFFFF  # no lane has this number: what names it opens a link

_OPENING_BYTES_MAX = 4096  # of the first message; it needs less than 100
_GREETING_BYTES = 1024  # read at once of it
_JOIN_BYTES = 16 * 1024  # below it one copy is cheaper than many buffers
_NOTSENT_BYTES = 128 * 1024  # the kernel takes no more than it can soon send: what waits can still be chosen
_HIGH_BYTES = 64 * 1024  # beyond it, in the transport, nothing more is given
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_UNSENT_MS = 60_000  # TCP_USER_TIMEOUT: a connection that acknowledges nothing for so long is dead


async def serve_link(request: web.Request, relay: "Relay", identity: Identity) -> web.StreamResponse:
    """Answer 101 and serve the link; return when it has ended."""
    response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": LINK_PROTOCOL})
    response.force_close()
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        return response
    # No await between 101 and here: who sends nothing before 101 has come loses nothing.
    link = RelayLink(relay, identity, request.protocol, transport)
    transport.set_protocol(link)
    link.start()
    await link.ended
    return response


class RelayLink(asyncio.BufferedProtocol):
    """Batches between one TCP connection and the switch. `before` is told when the connection is lost, too."""

    def __init__(
        self, relay: "Relay", identity: Identity, before: asyncio.BaseProtocol, transport: asyncio.Transport
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.identity = identity
        self._relay = relay
        self._host = relay.host
        self._before = before
        self._transport = transport
        self._opening = bytearray()
        self._number = 0  # as the switch knows it; 0: it does not
        self._is_over = False
        self._state = LinkState(relay.config.limits.link_batch_bytes_max, _buffers)
        self._pace = LinkPace()
        self._batches = 0
        self._paused = False
        self._greeting = memoryview(bytearray(_GREETING_BYTES))  # what comes before the first batch is read to it
        self._receipt_timer: asyncio.TimerHandle | None = None
        self._opening_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The transport is ours."""
        self._relay.watch(self)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)
        _tune(self._transport.get_extra_info("socket"))
        if not self._number:
            seconds = self._relay.config.limits.link_opening_seconds
            self._opening_timer = self._loop.call_later(seconds, self.end, "no first message")

    # --- what the host wants

    def fill(self) -> None:
        """Send what waits, as much as the connection takes."""
        while self._number and not self._paused and not self._state.closed:
            now = now_us()
            frames = self._host.switch.poll_link(self._number, self._pace.batch_bytes, now)
            if not frames:
                return
            self._batches += 1
            before = self._state.unreceipted_bytes
            buffers = self._state.send([frame.data for frame in frames], self._batches)
            size = self._state.unreceipted_bytes - before
            self._pace.sent(size, now)
            if size < _JOIN_BYTES:
                self._transport.write(b"".join(buffers))
            else:
                self._transport.writelines(buffers)
        if self._state.closed:
            self.end(self._state.closed)

    def end(self, text: str) -> None:
        """Close the connection at once: whatever is on its way has no receipt and leaves another way."""
        if not self._is_over:
            self._is_over = True
            _log.debug("link_ended", user=self.identity.user, text=text)
            self._transport.abort()

    # --- what the transport tells

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._state.space() if self._number else self._greeting

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        if self._number:
            now = now_us()
            self._found(self._state.filled(nbytes, now), now)
        else:
            self._open(self._greeting[:nbytes])

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.fill()
        self._host.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._relay.unwatch(self)
        for timer in (self._receipt_timer, self._opening_timer):
            if timer is not None:
                timer.cancel()
        number, self._number = self._number, 0
        if number:
            self._host.link_closed(number)
        if not self.ended.done():
            self.ended.set_result(None)
        self._before.connection_lost(exc)

    # --- what comes

    def _found(self, found: LinkInput, now: int) -> None:
        """Batches and receipts have come."""
        switch = self._host.switch
        for _ in found.receipts:
            self._pace.receipted(now)
        if found.receipts:
            switch.link_receipted(self._number, len(found.receipts), now)
        for batch in found.batches:
            switch.link_packets(self._number, parse_frames(batch)[0], now)
        if self._state.closed:
            self.end(self._state.closed)
        else:
            self._send_receipt()
        self._host.pump()

    def _open(self, data: Buffer) -> None:
        """The first message, perhaps in portions, perhaps with batches behind it."""
        self._opening += data
        if len(self._opening) < ENVELOPE_BYTES:
            return
        size = ENVELOPE_BYTES + int.from_bytes(self._opening[8:12], "big")  # 7.1
        if size > _OPENING_BYTES_MAX:
            self._refuse(Status(StatusCode.MALFORMED, text="not the first message of a link"))
        elif len(self._opening) >= size:
            whole = bytes(self._opening)
            self._opening.clear()
            self._take_first(decode_envelope(whole[:size]), whole[size:])

    def _take_first(self, message: object, rest: bytes) -> None:
        if not isinstance(message, Exchange) or message.lane != LINK_LANE or message.number:
            self._refuse(Status(StatusCode.MALFORMED, text="not the first message of a link"))
            return
        names = message.attachment_id, message.epoch, message.generation
        self._number = self._host.link_opened(self, self.identity.user, *names)
        if not self._number:
            self._refuse(Status(StatusCode.UNKNOWN))
            return
        if self._opening_timer is not None:
            self._opening_timer.cancel()
        self._write(Answer(LINK_LANE, 0, 0))
        if rest:
            now = now_us()
            self._found(self._state.receive(rest, now), now)
        else:
            self._host.pump()

    def _refuse(self, status: Status) -> None:
        self._write(status)
        self._is_over = True
        self._transport.close()

    def _write(self, message: Message) -> None:
        self._transport.write(b"".join(encode_envelope(message)))

    # --- receipts that leave alone (8.2)

    def _send_receipt(self) -> None:
        buffers = self._state.handle_timeout(now_us())
        if buffers:
            self._transport.writelines(buffers)
        due_us = self._state.next_timeout()
        if due_us is not None and self._receipt_timer is None:
            self._receipt_timer = self._loop.call_later(max(0, due_us - now_us()) / 1e6, self._on_receipt_timer)

    def _on_receipt_timer(self) -> None:
        self._receipt_timer = None
        if not self._is_over:
            self._send_receipt()


_log: Any = structlog.get_logger("link")
_buffers = Buffers()  # of all links in this process


def _tune(sock: socket.socket | None) -> None:
    """Send soon what is given, keep little in the kernel, and notice a peer that is gone."""
    if sock is None:
        return
    options = {"TCP_NODELAY": 1, "TCP_NOTSENT_LOWAT": _NOTSENT_BYTES, "TCP_USER_TIMEOUT": _UNSENT_MS, **_KEEPALIVE}
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        option = getattr(socket, name, None) or _OPTIONS_OF_LINUX.get(name)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


# The socket module has no name for it.
_OPTIONS_OF_LINUX = {"TCP_NOTSENT_LOWAT": 25} if hasattr(socket, "TCP_USER_TIMEOUT") else {}
