"""Opening and resuming: CONNECT, ACCEPTED and REJECTED as they pass the relay (3.2, 3.6, 6.5, 6.6)."""

import msgspec

from tunnel.wire import (
    ROUTE_KEY_SIZE,
    Connect,
    DropReason,
    Frame,
    Packet,
    RejectReason,
    Target,
    decode_accepted,
    decode_connect,
    decode_rejected,
    encode_connect,
    frame_of,
)
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import Authorise, Deny, Hand, HandTo
from tunnel_servlet.switch.model import Leg, Listener, Route, RouteState, ServedAttachment
from tunnel_servlet.switch.own_packets import rejected_frame
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes import RouteTable
from tunnel_servlet.switch.services import Services

__all__ = ["Openings"]

Refusal = tuple[int, str]  # reason and text of REJECTED

_CONNECT_BYTES_MAX = 4096  # far more than 2.1 needs; a route keeps its CONNECT until it is bound


class Openings:
    """Who may reach whom is asked of `authorise`; to whom a connection is handed is decided here."""

    def __init__(
        self,
        context: SwitchContext,
        registry: Registry,
        routes: RouteTable,
        services: Services,
        authorise: Authorise,
    ) -> None:
        self.is_draining = False  # nothing new is opened
        self._context = context
        self._registry = registry
        self._routes = routes
        self._services = services
        self._authorise = authorise
        self._settled_us: int | None = None  # until then services and exits may still be attaching

    def attached(self, attachment: ServedAttachment, now: int) -> None:
        """A new attachment: resumes may have waited for it (6.5)."""
        if self._settled_us is None:
            self._settled_us = now + self._context.config.settle_us
        for route in self._routes.unpark(attachment.identity):
            self._hand_resume(route, attachment, now)

    # --- packets

    def connect(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """CONNECT: authorised and handed on, or refused (3.2)."""
        self._context.counters.connects += 1
        route_key = bytes(frame.payload[:ROUTE_KEY_SIZE])
        if not frame.source or len(route_key) < ROUTE_KEY_SIZE:
            self._context.counters.packets_invalid += 1
            return
        connect = decode_connect(frame.payload) if frame.size <= _CONNECT_BYTES_MAX else None
        if connect is None:
            refusal: Refusal | None = (RejectReason.MALFORMED, "the relay does not understand the request")
        else:
            leg = attachment.legs.get(frame.source)
            if leg is not None:
                refusal = self._repeat(leg, connect, frame, now)
            else:
                refusal = self._open(attachment, connect, frame, now)
        if refusal is not None:
            self._context.counters.connects_refused += 1
            answer = rejected_frame(frame.source, route_key, *refusal)
            attachment.mailbox.post(("rejected", frame.source), answer)

    def accepted(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """ACCEPTED from the attachment the CONNECT was handed to binds; a repeated one passes (3.2)."""
        accepted = decode_accepted(frame.payload)
        if accepted is None or not frame.destination:
            self._context.counters.packets_invalid += 1
            return
        route = attachment.handed.get(accepted.route_key)
        if route is None or route.initiator.own_id != frame.source:
            self._context.counters.packets_without_route += 1
            if frame.destination not in attachment.legs:
                self._routes.tell_dropped(attachment, frame.destination, DropReason.NO_ROUTE)
            return
        if route.state is RouteState.HANDED and frame.destination not in attachment.legs:
            self._routes.bind(route, frame.destination, accepted, frame.sequence, now)
        if route.acceptor.own_id != frame.destination:
            self._context.counters.packets_misaddressed += 1
            return
        initiator = route.initiator
        initiator.mailbox.put_control(initiator.queue, frame)

    def rejected(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """REJECTED passes from the attachment the CONNECT was handed to, and from nobody else (9.1)."""
        rejected = decode_rejected(frame.payload)
        route = attachment.handed.get(rejected.route_key) if rejected is not None else None
        if route is None or route.initiator.own_id != frame.source:
            self._context.counters.packets_invalid += 1
            return
        initiator = route.initiator
        self._routes.release(route, now)
        initiator.mailbox.post(("rejected", initiator.own_id), frame)

    # --- inside

    def _repeat(self, leg: Leg, connect: Connect, frame: Frame, now: int) -> Refusal | None:
        """CONNECT of a route that is there: its acceptor answers as it did before (3.3). It may have to take the repeat
        for the first one, so that must not ask for anything but what was authorised."""
        route = leg.route
        named = (connect.route_key, connect.target)
        if leg is not route.initiator or named != (route.route_key, route.target):
            return RejectReason.ID_IN_USE, "another connection has this id"
        if route.resume and not connect.resume:
            return None  # it would open something at an endpoint that was never chosen for that (6.5)
        stamped = _stamp(frame, connect, leg.attachment.account.user)
        if route.state is not RouteState.PARKED:
            self._routes.hand_again(route, stamped)
        elif connect.resume and connect.options.endpoint_id == route.endpoint_id:
            route.frame = stamped
            self._routes.park(route, now)
        return None

    def _open(self, attachment: ServedAttachment, connect: Connect, frame: Frame, now: int) -> Refusal | None:
        """A new route. A resume that finds no room is not refused: that would end a stream that can wait."""
        user = attachment.account.user
        if self.is_draining:
            return None if connect.resume else (RejectReason.SHUTTING_DOWN, "the relay is shutting down")
        decision = self._authorise(user, connect.target)
        if isinstance(decision, Deny):
            return decision.reason, decision.text
        endpoint_id = connect.options.endpoint_id
        if connect.resume and endpoint_id is None:
            return RejectReason.MALFORMED, "a resume names the endpoint"
        if connect.resume and self._registry.was_replaced(endpoint_id or b"", now):
            return RejectReason.GONE, "the endpoint was replaced"
        route = self._routes.open(attachment, connect, _stamp(frame, connect, user))
        if route is None:
            return None if connect.resume else (RejectReason.BUSY, "no more connections")
        if not connect.resume:
            return self._hand(route, decision, connect.target, now)
        endpoint = self._registry.by_id.get(route.endpoint_id)
        if endpoint is not None:
            self._hand_resume(route, endpoint, now)
        else:
            self._context.counters.resumes_parked += 1
            self._routes.park(route, now)
        return None

    def _hand(self, route: Route, decision: Hand, target: Target, now: int) -> Refusal | None:
        """Hand it to the first with room, who is last in the next turn."""
        candidates: list[tuple[ServedAttachment, Listener | None]]
        if decision.to is HandTo.SERVICE:
            listeners = self._services.candidates(decision.name or target.host)
            candidates = [(listener.attachment, listener) for listener in listeners]
            refusal: Refusal = RejectReason.NO_SUCH_SERVICE, "nobody listens under this name"
        else:
            exits = [found for found in self._registry.exits if decision.name in ("", found.name)]
            candidates = [(found, None) for found in exits]
            refusal = RejectReason.UNREACHABLE, "no exit is attached"
        for acceptor, listener in candidates:
            if listener is not None and not listener.has_room:
                refusal = RejectReason.BUSY, "no listener has room"
                continue
            reason = self._routes.hand(route, acceptor, listener, now)
            if reason is None:
                self._take_turn(acceptor, listener)
                return None
            refusal = reason, "another connection has this route key" if reason is RejectReason.ID_IN_USE else "full"
        self._routes.release(route, now)
        if not candidates and (self._settled_us is None or now < self._settled_us):
            return None  # they may be about to attach again, like everybody: the initiator asks again in a second
        return refusal

    def _take_turn(self, acceptor: ServedAttachment, listener: Listener | None) -> None:
        if listener is not None:
            self._services.chosen(listener)
        else:
            self._registry.exits.remove(acceptor)
            self._registry.exits.append(acceptor)

    def _hand_resume(self, route: Route, endpoint: ServedAttachment, now: int) -> None:
        """It never dials (6.5): the endpoint knows the route, or answers REJECTED(gone)."""
        if self._routes.hand(route, endpoint, None, now) is not None:
            self._routes.release(route, now)  # the initiator asks again in a second


def _stamp(frame: Frame, connect: Connect, user: str) -> Frame:
    """CONNECT with the user that the relay vouches for, in the place of whatever it said (2.1)."""
    options = msgspec.structs.replace(connect.options, user=user)
    payload = encode_connect(msgspec.structs.replace(connect, options=options))
    kind, source, destination, sequence = frame.type, frame.source, frame.destination, frame.sequence
    return frame_of(Packet(kind, source, destination, sequence, payload, frame.attempt, frame.version))
