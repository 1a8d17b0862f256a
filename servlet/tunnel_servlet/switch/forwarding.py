"""The data path: forwards the packets of a route to its other side, and handles all other packets.

Clauses 6.7, 9.1, 9.5 of docs/PROTOCOL.md.
"""

from collections.abc import Callable, Sequence

from tunnel.exchange.served.served import ServedLane
from tunnel.traces.record import TraceReason
from tunnel.wire import (
    FAREWELLS,
    IN_STREAM,
    UNANSWERED,
    DropReason,
    Frame,
    ListenStatus,
    Option,
    Options,
    PacketType,
    RejectReason,
    decode_leave,
    decode_listen_state,
    decode_option,
    readdress,
)
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import PacketFilter
from tunnel_servlet.switch.model import Leg, RouteState, ServedAttachment
from tunnel_servlet.switch.own_packets import listen_state_frame, option_frame
from tunnel_servlet.switch.routes.openings import Openings
from tunnel_servlet.switch.routes.routes import RouteTable
from tunnel_servlet.switch.routes.services import Services
from tunnel_servlet.switch.short_way import pass_on
from tunnel_servlet.switch.stats import Traffic, Undelivered

__all__ = ["ORDERS", "ORDERS_MAX", "PART_PACKETS", "BodyRest", "Forwarder", "part_packets"]

_DATA, _OPTION, _ABORT = int(PacketType.DATA), int(PacketType.OPTION), int(PacketType.ABORT)
PART_PACKETS = 64
# A refused CONNECT costs 30 us, on a busy machine 200. With 64 of them in a part, the round trips of another user took
# 80 ms, since each takes several turns.
ORDERS_MAX = 16
ORDERS = frozenset(
    map(
        int,
        (PacketType.CONNECT, PacketType.ACCEPTED, PacketType.REJECTED, PacketType.LEAVE, PacketType.LISTEN_STATE),
    )
)
_UNHANDED = (RouteState.PARKED, RouteState.WAITING)


class Forwarder:
    """Handles whole valid packets from attachments. No packet makes it raise, or reaches a route other than its own."""

    def __init__(
        self,
        context: SwitchContext,
        routes: RouteTable,
        openings: Openings,
        services: Services,
        packet_filter: PacketFilter | None,
        *,
        has_short_way: bool = True,
    ) -> None:
        self._context = context
        self._routes = routes
        self._openings = openings
        self._services = services
        self._filter = packet_filter
        self._has_short_way = has_short_way
        self._handlers: dict[int, Callable[[ServedAttachment, Frame, int], None]] = {
            int(PacketType.CONNECT): openings.connect,
            int(PacketType.ACCEPTED): openings.handle_accepted,
            int(PacketType.REJECTED): openings.handle_rejected,
            int(PacketType.LISTEN_STATE): self._listen_state,
            int(PacketType.LEAVE): self._leave,
            int(PacketType.NOOP): self._ignore,
            int(PacketType.DROPPED): self._invalid,
            int(PacketType.EDGE): self._invalid,
        }

    def receive(
        self, attachment: ServedAttachment, frames: Sequence[Frame], now: int, carrier: Traffic | None = None
    ) -> None:
        """Handle the packets of one batch, in order, and count them for their user and, if it is given, the carrier."""
        counters = self._context.counters
        if self._filter is not None:
            kept = [frame for frame in frames if self._filter(frame)]
            counters.packets_filtered += len(frames) - len(kept)
            frames = kept
        packet_bytes_max = self._context.config.packet_bytes_max
        legs, handlers = attachment.legs, self._handlers
        size = pass_on(attachment, frames, packet_bytes_max) if self._has_short_way and frames else 0
        if size:
            counters.packets_streamed += frames[-1].type == _DATA
            self._count_received(attachment, len(frames), size, carrier)
            return
        for frame in frames:
            kind = frame.type
            frame_bytes = len(frame.data)
            size += frame_bytes
            if kind in handlers:
                handlers[kind](attachment, frame, now)
                continue
            leg = legs.get(frame.source)
            if leg is None or leg.far_id != frame.destination or not leg.far_id or frame_bytes > packet_bytes_max:
                self._exception(attachment, leg, frame, now)
                continue
            self._forward(leg, frame, now)
        self._count_received(attachment, len(frames), size, carrier)
        if self._routes.waiting.changed:
            self._openings.serve_waiting(now)

    def _count_received(self, attachment: ServedAttachment, packets: int, size: int, carrier: Traffic | None) -> None:
        counters, traffic = self._context.counters, attachment.mailbox.traffic
        counters.packets_received += packets
        counters.bytes_received += size
        traffic.packets_received += packets
        traffic.bytes_received += size
        if carrier is not None:
            carrier.packets_received += packets
            carrier.bytes_received += size

    def _forward(self, leg: Leg, frame: Frame, now: int) -> None:
        """Put the packet into the queue of the route's other side."""
        far = leg.far
        if frame.type in IN_STREAM:
            if far.mailbox.put(far.queue, frame):
                self._context.counters.packets_streamed += 1
            else:
                self._context.trace_dropped(frame, TraceReason.FULL, now)
            return
        if not far.mailbox.put_control(far.queue, frame):
            self._context.trace_dropped(frame, TraceReason.FULL, now)
        if frame.type in FAREWELLS:
            self._routes.shut(leg, now, is_abort=frame.type == _ABORT)

    # --- exceptions

    def _exception(self, attachment: ServedAttachment, leg: Leg | None, frame: Frame, now: int) -> None:
        """Handle a packet that is too large, or has no route, an unbound route or the wrong destination."""
        if frame.type == _OPTION and not frame.source and not frame.destination:
            self._option(attachment, frame, now)
        elif leg is None:
            self._without_route(attachment, frame, now)
        elif leg.route.state is RouteState.WAITING and frame.type in FAREWELLS:
            self._context.counters.packets_ended += 1  # its CONNECT
            self._routes.release(leg.route, now)
            self._routes.note_refused(leg.route, RejectReason.GONE, "the endpoint that asked for it has given up")
        elif leg.route.state in _UNHANDED or leg is not leg.route.initiator or frame.destination:
            self._drop_misaddressed(leg, frame, now)
        elif frame.size > self._context.config.packet_bytes_max:
            self._too_large(leg, frame, now)
        elif leg.route.state is RouteState.BOUND:
            # The initiator sent it before ACCEPTED arrived.
            self._forward(leg, readdress(frame, destination=leg.far_id), now)
        elif not self._routes.hold(leg.route, frame):
            self._context.trace_dropped(frame, TraceReason.FULL, now)

    def _without_route(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Count a packet without a route, and answer DROPPED(no route) where 6.7 requires it.

        A packet may overtake, on another lane, the CONNECT or ACCEPTED that creates its route. Such a packet is not
        answered, so that its sender does not take the route for lost; the sender's timers repair the loss.
        """
        self._context.drop(Undelivered.NO_ROUTE, frame, now)
        is_early = not frame.destination or attachment.is_awaited(frame.destination)
        if frame.source and not is_early and frame.type not in UNANSWERED:
            self._routes.tell_dropped(attachment, frame.source, DropReason.NO_ROUTE)

    def _drop_misaddressed(self, leg: Leg, frame: Frame, now: int) -> None:
        """Drop a packet with a destination other than the bound one, or one that came too early to store (9.1, 3.6).

        A packet with the right destination comes here only because it is too large.
        """
        if leg.far_id and leg.far_id == frame.destination:
            self._too_large(leg, frame, now)
        else:
            is_bound = leg.route.state is RouteState.BOUND
            self._context.drop(Undelivered.MISADDRESSED if is_bound else Undelivered.TOO_EARLY, frame, now)

    def _too_large(self, leg: Leg, frame: Frame, now: int) -> None:
        """Drop a packet above the announced size, and name it in DROPPED(too large) if it is DATA (7.11, 9.1)."""
        self._context.drop(Undelivered.TOO_LARGE, frame, now)
        if frame.type == _DATA:
            limit = self._context.config.packet_bytes_max
            leg.queue.note_dropped(DropReason.TOO_LARGE, leg.queue.back.ledger.key(frame.sequence), limit)

    def _option(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle OPTION of the attachment: settle the pull interval and answer with the settled value (2.7)."""
        option = decode_option(frame.payload)
        if option is None:
            self._invalid(attachment, frame, now)
            return
        if option.version < attachment.option_version:
            return
        if option.version > attachment.option_version and option.options.pull_interval_ms is not None:
            attachment.set_pull_interval(option.options.pull_interval_ms)
        if option.options.leaving and not attachment.is_leaving:
            self._openings.leave(attachment, now, has_ended=not attachment.is_exit)
            self._context.deadlines.set(attachment.expiry, now + attachment.left_us)
        attachment.option_version = option.version
        settled = Options(pull_interval_ms=attachment.pull_interval_us // 1000)
        attachment.mailbox.post(("option", 0), option_frame(Option(option.version, settled)))

    def _listen_state(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle LISTEN_STATE: a service goes up or down. The endpoint repeats it until it is answered (2.8)."""
        state = decode_listen_state(frame.payload)
        if state is None or frame.source or frame.destination:
            self._invalid(attachment, frame, now)
            return
        answer = self._services.announce(attachment, state, now)
        listener = attachment.listeners.get(state.name)
        if listener is not None and not listener.is_up and listener.pending:
            self._openings.hand_over(attachment, now)
        if answer is not None:
            attachment.mailbox.post(("listens " + state.name, 0), listen_state_frame(answer))
            if self._context.witness is not None and state.state == ListenStatus.UP:
                is_up = answer.state == ListenStatus.UP
                self._context.witness.on_service(attachment.facts(), state.name, is_up=is_up, text=answer.text)

    def _leave(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle LEAVE: a connection goes on at another relay, says its initiator (6.11). The acceptor knows it."""
        move = decode_leave(frame.payload)
        leg = attachment.legs.get(frame.source)
        if move is None:
            self._invalid(attachment, frame, now)
        elif leg is None:
            self._context.drop(Undelivered.NO_ROUTE, frame, now)
        elif leg is not leg.route.initiator or leg.far_id not in (0, frame.destination):
            self._context.drop(Undelivered.MISADDRESSED, frame, now)
        elif move <= leg.route.move or not self._routes.leave(leg.route, now):
            self._context.drop(Undelivered.ENDED, frame, now)  # the connection has come back since, or too many left

    def _invalid(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Count a packet that is malformed or that an endpoint must not send."""
        self._context.drop(Undelivered.INVALID, frame, now)

    def _ignore(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Ignore NOOP."""


def part_packets(frames: Sequence[Frame]) -> int:
    """Return how many of these packets are handled before the clock is read: at most `PART_PACKETS`, and at most
    `ORDERS_MAX` of those that change routes or services, which cost more."""
    if len(frames) <= ORDERS_MAX:  # the usual body
        return len(frames)
    orders = 0
    for place, frame in enumerate(frames[:PART_PACKETS], 1):
        if frame.type in ORDERS:
            orders += 1
            if orders == ORDERS_MAX:
                return place
    return min(len(frames), PART_PACKETS)


class BodyRest:
    """What is left of the body of one request, `handle`, which has no answer yet. `frames` are handled in this
    order."""

    __slots__ = ("attachment", "frames", "handle", "lane")

    def __init__(self, attachment: ServedAttachment, lane: ServedLane, handle: int, frames: list[Frame]) -> None:
        self.attachment = attachment
        self.lane = lane
        self.handle = handle
        self.frames = frames

    def take(self) -> list[Frame]:
        """Remove and return the packets of the next part."""
        end = part_packets(self.frames)
        taken, self.frames = self.frames[:end], self.frames[end:]
        return taken
