"""The relay's half of a link on aiohttp: takes over the TCP connection after 101 and carries batches on it (section 8).

The first message is an EXCHANGE without payload (lane 0xFFFF, number 0) that names id, epoch and generation. The relay
answers with an ANSWER (lane 0xFFFF, number 0), or it sends a STATUS and closes the connection. The serial is 1 in both
if the link shares the load with others (8.7), else 0.

`tunnel_servlet.web.websocket` serves the same on a websocket.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web

from tunnel.carriers.halves.link_protocol import LINK_LANE, LINK_PROTOCOL, SHARES, LinkProtocol
from tunnel.carriers.halves.websocket_transport import GOING_AWAY, STATUS_CLOSE, WebSocketTransport
from tunnel.exchange import LinkInput, LinkPace
from tunnel.system.clock import LoopTimer, now_us
from tunnel.turns.meter import Start
from tunnel.wire import (
    HEADER_SIZE,
    Answer,
    Buffer,
    Exchange,
    Message,
    Status,
    StatusCode,
    batch_end,
    encode_envelope,
    parse_frames,
)
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.access.tokens import USED, Identity
from tunnel_servlet.switch.forwarding import ORDERS, ORDERS_MAX, PART_PACKETS
from tunnel_servlet.switch.witness import NOWHERE, Origin
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.relay import Relay

__all__ = ["RelayLink", "serve_link"]

_SMALL_BYTES = PART_PACKETS * HEADER_SIZE  # a batch of at most this size has no more packets than a part
_OPENING_BYTES_MAX = 4096  # largest first message; a valid one has fewer than 100 bytes
# KEEPIDLE and KEEPINTVL in seconds, KEEPCNT in probes, USER_TIMEOUT (time without an acknowledgement) in ms.
_TCP_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}


async def serve_link(
    request: web.Request, relay: Relay, identity: Identity, origin: Origin = NOWHERE
) -> web.StreamResponse:
    """Answer 101 and serve the link from then on. On a server that is not the relay's, return when it has ended."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client has gone")
    response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", "Upgrade": LINK_PROTOCOL})
    response.force_close()
    await response.prepare(request)
    transport = request.transport
    if transport is None:
        return response
    # No await between 101 and here: otherwise aiohttp could read, and lose, bytes that the endpoint sends after 101.
    handler = request.protocol
    if isinstance(handler, RelayHandler):
        handler.hand_over()
        RelayLink(relay, identity, transport, handler.counted, origin=origin, owns_place=True).start()
        return response
    link = RelayLink(relay, identity, transport, None, handler, origin)
    link.start()
    await link.ended
    return response


class RelayLink(LinkProtocol):
    """Carries batches between one TCP connection, or websocket, and the switch.

    Data that waits in memory is charged to `place`. With `owns_place`, the connection leaves it when it is lost.
    `before`, if given, is the connection's previous protocol; it is also notified then. One thing because a batch's
    bytes are charged, timed and handled as they come.
    """

    def __init__(
        self,
        relay: Relay,
        identity: Identity,
        transport: asyncio.Transport,
        place: CountedConnection | None,
        before: asyncio.BaseProtocol | None = None,
        origin: Origin = NOWHERE,
        *,
        owns_place: bool = False,
    ) -> None:
        batch_bytes_max = relay.config.limits.link_batch_bytes_max
        super().__init__(now_us, batch_bytes_max, _OPENING_BYTES_MAX, takes_empty=False)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.identity = identity
        self._origin = origin
        self._relay = relay
        self._host = relay.host
        self._before = before
        self._transport = transport
        self._number = 0  # the link's number at the switch; 0 while the switch does not know the link
        self._shares = False  # it shares the load with other links (8.7)
        self._pace = LinkPace()
        self._batches = 0
        self._turns = relay.host.turns
        self._arrived: list[Buffer] = []  # batches that are not handled yet
        self._handled = 0  # bytes of the first batch that are handled
        self._place = place
        self._owns_place = owns_place
        self._held_bytes = 0  # charged to the user: the batch that is coming, and those that are not handled yet
        self._batch_timer: asyncio.TimerHandle | None = None
        self._is_read = True  # bytes are read from the connection
        self._receipt_timer = LoopTimer(self._send_receipt)
        self._opening_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take over the connection and wait for the first message."""
        self._relay.watch(self)
        why = self._relay.why_ended(self.identity)
        if why:  # the token expired or was revoked while 101 was on its way
            self._loop.call_soon(self.end, why)
        seconds = self._relay.config.limits.link_opening_seconds
        self._opening_timer = self._loop.call_later(seconds, self.end, "no first message")
        self.take_over(self._transport, _TCP_OPTIONS)
        self._turns.join(self.identity.user, self)

    # --- UserInput

    def pause_input(self) -> None:
        """Read nothing more until `resume_input`."""
        if self._is_read and not self.is_over:
            self._is_read = False
            self._transport.pause_reading()

    def resume_input(self) -> None:
        """Handle the batches that have arrived, then read on."""
        self._handle_arrived(self._turns.meter.start())

    # --- HostedLink

    def fill(self) -> None:
        """Send the batches that wait, until none is left or the connection takes no more."""
        state = self.state
        now = now_us()
        if self.is_paused and self._shares:
            self._host.switch.link_is_full(self._number, now)
        while self._number and not self.is_paused and not state.closed:
            frames = self._host.switch.poll_link(self._number, self._pace.batch_bytes, now)
            if not frames:
                return
            self._batches += 1
            before = state.unreceipted_bytes
            buffers = state.send([frame.data for frame in frames], self._batches)
            self._pace.on_sent(state.unreceipted_bytes - before, now)
            self.write(buffers)
        if state.closed:
            self.end(state.closed)

    def end(self, text: str) -> None:
        """Close the connection at once. The switch sends packets without a receipt again by another way."""
        if not self.is_over:
            self.is_over = True
            self.is_open = False
            _log.debug("link_ended", user=self.identity.user, text=text)
            if isinstance(self._transport, WebSocketTransport):
                is_invalid = bool(self._relay.why_ended(self.identity))
                code = STATUS_CLOSE + StatusCode.NOT_AUTHORISED if is_invalid else GOING_AWAY
                self._transport.close_with(code, text, at_once=True)
            else:
                self._transport.abort()

    # --- LinkProtocol

    def buffer_updated(self, nbytes: int) -> None:
        began = self._turns.meter.start()
        super().buffer_updated(nbytes)
        self._handle_arrived(began)

    def message_received(self, data: Buffer) -> None:
        began = self._turns.meter.start()
        super().message_received(data)
        self._handle_arrived(began)

    def opened_by(self, message: object) -> bool:
        if not isinstance(message, Exchange) or message.lane != LINK_LANE or message.number:
            self.on_refused()
            return False
        if not self._relay.may_link(self.identity, message.attachment_id):
            origin, user, key_id = self._origin, self.identity.user, self.identity.key_id
            self._relay.audit.note_refused_token(
                origin.source, "used", origin.forwarded, user=user, key_id=key_id, text=USED
            )
            self._refuse(Status(StatusCode.NOT_AUTHORISED, text=USED))
            return False
        names = message.attachment_id, message.epoch, message.generation
        self._shares = shares = message.serial_received == SHARES
        self._number = self._host.link_opened(self, self.identity.user, *names, self._origin, shares=shares)
        if not self._number:
            self._refuse(Status(StatusCode.UNKNOWN))
            return False
        if self._opening_timer is not None:
            self._opening_timer.cancel()
        self.is_open = True
        self.state.on_opened(now_us())
        self._say(Answer(LINK_LANE, 0, SHARES if shares else 0))
        self._send_receipt()
        self._host.pump()
        return True

    def on_input(self, found: LinkInput) -> None:
        if self.is_over:
            return
        now = found.now
        switch = self._host.switch
        for _ in found.receipts:
            self._pace.on_receipted(now)
        if self.state.is_peer_leaving:
            switch.link_left(self._number, now)
        if found.receipts:
            switch.link_receipted(self._number, len(found.receipts), now)
        self._arrived += found.batches
        if found.batches and self._batch_timer is not None:
            self._batch_timer.cancel()
            self._batch_timer = None
        due_us, timer = self.state.due_us, self._receipt_timer
        if due_us is not None and (due_us <= now or timer.due_us is None or due_us < timer.due_us):
            self._send_due(now)

    def writable(self) -> None:
        self.fill()
        self._host.pump()

    def on_refused(self) -> None:
        self._refuse(Status(StatusCode.MALFORMED, text="not a valid first message of a link"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.is_open = False
        self._relay.unwatch(self)
        self._turns.leave(self.identity.user, self)
        self._arrived.clear()
        self.state.connection_lost()
        self._receipt_timer.close()
        for timer in (self._opening_timer, self._batch_timer):
            if timer is not None:
                timer.cancel()
        number, self._number = self._number, 0
        if number:
            self._host.link_closed(number)
        if not self.ended.done():
            self.ended.set_result(None)
        if self._before is not None:
            self._before.connection_lost(exc)
        if self._owns_place and self._place is not None:
            self._place.leave()

    def _refuse(self, status: Status) -> None:
        self._say(status)
        self.is_over = True
        if isinstance(self._transport, WebSocketTransport):
            self._transport.close_with(STATUS_CLOSE + status.code, status.text)
        else:
            self._transport.close()

    def _say(self, message: Message) -> None:
        self._transport.write(b"".join(encode_envelope(message)))

    # --- batches

    def _handle_arrived(self, began: Start) -> None:
        """Handle the batches that have arrived, in parts, until it is the turn of other users, and pump.

        The user pays for the processor time since `began`. If only a small batch has arrived, this time is charged
        together with that for the batch; otherwise it is charged first.
        """
        user, turns = self.identity.user, self._turns
        if self._arrived and (len(self._arrived) > 1 or len(self._arrived[0]) > _SMALL_BYTES):
            turns.spent_since(user, began)
            began = turns.meter.start()
        has_handled = False
        while self._number and self._arrived and not self.is_over and not turns.is_stopped(user):
            if has_handled:
                began = turns.meter.start()
            has_handled = True
            self._handle_part()
            self._host.pump()
            turns.spent_since(user, began)
        if not has_handled:
            self._host.pump()
            turns.spent_since(user, began)
        if self._arrived or not self._is_read or self.state.closed:  # a user that is stopped is not read, either
            self._read_on(user)
        if self._arrived or self._held_bytes or self.state.coming_bytes:
            self._account()

    def _read_on(self, user: str) -> None:
        """Read from the connection, unless batches or other users must be handled first."""
        if self.is_over:
            return
        if not self._arrived and self.state.closed:
            self.end(self.state.closed)
        elif self._arrived or self._turns.is_stopped(user):
            self.pause_input()
        elif not self._is_read:
            self._is_read = True
            self._transport.resume_reading()

    def _account(self) -> None:
        """Charge the user for the bytes that this link has not handled, and limit the time for the rest of a batch."""
        coming = self.state.coming_bytes
        held = coming + sum(map(len, self._arrived))
        if self._place is not None and not self.is_over:
            if held > self._held_bytes and not self._place.hold(held - self._held_bytes):
                self.end("too many batches of this user are still coming")
                return
            if held < self._held_bytes:
                self._place.free(self._held_bytes - held)
            self._held_bytes = held
        if coming and self._batch_timer is None and not self.is_over:
            seconds = self._relay.config.limits.body_seconds
            self._batch_timer = self._loop.call_later(seconds, self.end, f"a batch did not arrive within {seconds} s")

    def _handle_part(self) -> None:
        """Handle a part of the first batch."""
        batch = memoryview(self._arrived[0])
        end = len(batch)
        if end - self._handled > _SMALL_BYTES:
            end = batch_end(batch, self._handled, PART_PACKETS, ORDERS, ORDERS_MAX)
        frames, _ = parse_frames(batch[self._handled : end])
        self._host.switch.link_packets(self._number, frames, now_us())
        self._handled = end
        if end == len(batch) and self._arrived:
            del self._arrived[0]
            self._handled = 0

    # --- receipts without a batch (8.2, 8.4)

    def _send_receipt(self) -> None:
        """Send a receipt if it is due, and set the timer for the next one."""
        if not self.is_over:
            self._send_due(now_us())

    def _send_due(self, now: int) -> None:
        if self.state.closed:
            return
        due_us = self.state.due_us
        if due_us is not None and due_us <= now:
            self.write(self.state.handle_timeout(now))
            due_us = self.state.due_us
        if due_us is not None:
            self._receipt_timer.due_by(due_us, now)


_log: Any = structlog.get_logger("link")
