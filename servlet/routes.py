"""Routes: who is bound to whom, who waits to be, and when that ends (3.2, 6.5, 9.5)."""

import enum
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from servlet.attachments import Attachment
from servlet.context import SwitchContext
from servlet.deadlines import Deadline
from servlet.frames import dropped_frame, rejected_frame
from servlet.route_queue import RouteQueue
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import Accepted, Connect, DropReason, Frame, RejectReason

if TYPE_CHECKING:
    from servlet.services import Listener

__all__ = ["Leg", "Route", "RouteState", "RouteTable"]


class RouteState(enum.Enum):
    """How far a route has come."""

    PARKED = "parked"  # a resume whose endpoint is not attached (6.5)
    HANDED = "handed"  # CONNECT is with an acceptor (3.2)
    BOUND = "bound"
    RELEASED = "released"


class Leg:
    """One side of a route. `queue` is what waits for this side. `far_id` is 0 until the route is bound."""

    __slots__ = ("attachment", "far", "far_id", "has_shut", "own_id", "queue", "route")

    def __init__(self, attachment: Attachment, own_id: int, queue: RouteQueue, route: "Route") -> None:
        self.attachment = attachment
        self.own_id = own_id
        self.queue = queue
        self.route = route
        self.far = self
        self.far_id = 0
        self.has_shut = False  # it sent SHUTDOWN, or ABORT


class Route:
    """A connection as the relay sees it. `acceptor` is itself the initiator while a resume is parked."""

    __slots__ = ("acceptor", "connect", "deadline", "frame", "initiator", "is_lingering", "listener", "state")

    def __init__(self, connect: Connect, frame: Frame) -> None:
        self.connect = connect
        self.frame = frame  # CONNECT as it is handed on, stamped
        self.state = RouteState.PARKED
        self.initiator: Leg
        self.acceptor: Leg
        self.deadline: Deadline
        self.listener: Listener | None = None
        self.is_lingering = False

    @property
    def route_key(self) -> bytes:
        """Drawn by the initiator (3.1)."""
        return self.connect.route_key

    @property
    def connect_key(self) -> tuple[str, int, int]:
        """Under which CONNECT waits in the acceptor's mailbox."""
        return "connect", self.initiator.attachment.number, self.initiator.own_id


class RouteTable:
    """All routes of the switch."""

    def __init__(self, context: SwitchContext) -> None:
        self._context = context
        self._parked: dict[bytes, dict[int, Route]] = {}  # by the endpoint named, then by the order of parking
        self._park_order = 0
        self.counts = dict.fromkeys(RouteState, 0)

    # --- opening

    def open(self, attachment: Attachment, connect: Connect, frame: Frame) -> Route | None:
        """A route from `attachment` to nobody yet; None if limits or reservations are used up."""
        config, account = self._context.config, attachment.account
        if (
            sum(self.counts.values()) - self.counts[RouteState.RELEASED] >= config.routes_max
            or account.routes >= config.routes_per_user_max
            or attachment.routes_opened >= config.routes_per_attachment_max
        ):
            return None
        queue = attachment.mailbox.open(frame.source)
        if queue is None:
            return None
        route = Route(connect, frame)
        route.initiator = route.acceptor = Leg(attachment, frame.source, queue, route)
        route.deadline = Deadline(partial(self._timed_out, route))
        attachment.legs[frame.source] = route.initiator
        attachment.mailbox.queues[frame.source] = queue
        attachment.routes_opened += 1
        account.routes += 1
        self.counts[RouteState.PARKED] += 1
        return route

    def hand(self, route: Route, acceptor: Attachment, listener: "Listener | None", now: int) -> RejectReason | None:
        """Hand CONNECT to `acceptor`; why not, if it cannot be."""
        if route.route_key in acceptor.handed:
            return RejectReason.ID_IN_USE
        queue = acceptor.mailbox.open(0)
        if queue is None:
            return RejectReason.BUSY
        if not acceptor.mailbox.post(route.connect_key, route.frame):
            acceptor.mailbox.close(queue)
            return RejectReason.BUSY
        initiator = route.initiator
        queue.blocked = True
        queue.back, initiator.queue.back = initiator.queue, queue
        if not route.connect.resume:
            queue.ledger.start_at(route.frame.sequence)
        route.acceptor = Leg(acceptor, 0, queue, route)
        acceptor.handed[route.route_key] = route
        if listener is not None:
            listener.pending += 1
            route.listener = listener
        self._become(route, RouteState.HANDED)
        self._context.deadlines.set(route.deadline, now + self._context.config.pending_timeout_us)
        return None

    def hand_again(self, route: Route, frame: Frame) -> None:
        """CONNECT was repeated: the acceptor is idempotent (3.3)."""
        route.frame = frame
        if route.state is not RouteState.PARKED:
            route.acceptor.attachment.mailbox.post(route.connect_key, frame)

    def park(self, route: Route, endpoint_id: bytes, now: int) -> None:
        """A resume waits for the endpoint it names; a repeat waits anew (6.5)."""
        parked = self._parked.setdefault(endpoint_id, {})
        if route not in parked.values():
            self._park_order += 1
            parked[self._park_order] = route
        self._context.deadlines.set(route.deadline, now + self._context.config.park_us)

    def unpark(self, endpoint_id: bytes) -> list[Route]:
        """The resumes that wait for this endpoint, oldest first; they wait no more."""
        return list(self._parked.pop(endpoint_id, {}).values())

    def bind(self, route: Route, own_id: int, accepted: Accepted, sequence: int, now: int) -> None:
        """The acceptor echoed the route key: `own_id` is its id, `sequence` its initial one."""
        initiator, acceptor = route.initiator, route.acceptor
        acceptor.own_id = initiator.far_id = own_id
        acceptor.far_id = initiator.own_id
        initiator.far, acceptor.far = acceptor, initiator
        acceptor.attachment.legs[own_id] = acceptor
        acceptor.attachment.mailbox.queues[own_id] = acceptor.queue
        if not accepted.resumed:
            initiator.queue.ledger.start_at(sequence)
        self._become(route, RouteState.BOUND)
        self._forget_pending(route)
        self._context.deadlines.clear(route.deadline)
        acceptor.queue.bind(own_id)
        counters = self._context.counters
        counters.routes_bound += 1
        counters.routes_resumed += accepted.resumed
        event = TraceEvent.ROUTE_RESUMED if accepted.resumed else TraceEvent.ROUTE_BOUND
        self._context.trace(event, now, connection=initiator.own_id, peer=own_id, text=initiator.attachment.account.user)

    # --- ending

    def shut(self, leg: Leg, now: int) -> None:
        """This side sent SHUTDOWN or ABORT, which is on its way (9.5)."""
        route = leg.route
        leg.has_shut = True
        if leg.far.has_shut:
            self.release(route, now)
        elif not route.is_lingering:
            self._linger(route, now)

    def release(self, route: Route, now: int, reason: TraceReason | None = None) -> None:
        """Forget the route. Control packets that wait for its sides still leave."""
        initiator, acceptor, state = route.initiator, route.acceptor, route.state
        self._context.deadlines.clear(route.deadline)
        self._forget_pending(route)
        if state is RouteState.PARKED:
            self._unpark_one(route)
        self._become(route, RouteState.RELEASED)
        self._uncount(route)
        if acceptor is not initiator:
            del acceptor.attachment.handed[route.route_key]
            acceptor.attachment.mailbox.close(acceptor.queue)
            acceptor.attachment.legs.pop(acceptor.own_id, None)
        initiator.attachment.mailbox.close(initiator.queue)
        del initiator.attachment.legs[initiator.own_id]
        self._context.counters.routes_released += 1
        self._context.trace(
            TraceEvent.ROUTE_RELEASED,
            now,
            connection=initiator.own_id,
            peer=acceptor.own_id,
            reason=reason,
            text=state.value,
        )

    def release_all(self, attachment: Attachment, reason: DropReason, now: int) -> None:
        """The attachment is no more: its routes end, and the other sides are told (6.4, 9.5)."""
        why = TraceReason.GONE if reason is DropReason.GONE else TraceReason.NO_ROUTE
        handed = [route for route in attachment.handed.values() if route.state is RouteState.HANDED]
        for route in [*(leg.route for leg in attachment.legs.values()), *handed]:
            if route.state is RouteState.RELEASED:
                continue  # both of its sides were here
            bound = route.state is RouteState.BOUND
            other = route.initiator if route.acceptor.attachment is attachment else route.acceptor
            self.release(route, now, why)
            if other.attachment is attachment:
                continue
            if bound:
                self.tell_dropped(other.attachment, other.own_id, reason)
            elif other is route.initiator:
                self.tell_rejected(route, RejectReason.GONE, "the endpoint is gone")

    def tell_dropped(self, attachment: Attachment, own_id: int, reason: DropReason) -> None:
        """DROPPED for a route that is no more; at most one waits for each id (6.7)."""
        attachment.mailbox.post(("dropped", own_id, 0), dropped_frame(own_id, reason))

    def tell_rejected(self, route: Route, reason: RejectReason, text: str) -> None:
        """REJECTED by the relay, for a route that was just released."""
        initiator = route.initiator
        frame = rejected_frame(initiator.own_id, route.route_key, reason, text)
        initiator.attachment.mailbox.post(("rejected", initiator.own_id, 0), frame)

    # --- inside

    def _timed_out(self, route: Route, now: int) -> None:
        state = route.state
        self.release(route, now)
        if state is RouteState.HANDED:
            self.tell_rejected(route, RejectReason.TIMED_OUT, "nobody answered the request")

    def _linger(self, route: Route, now: int) -> None:
        """The first SHUTDOWN: the route needs no reservation any more, and does not count as one that is open."""
        config, owner = self._context.config, route.initiator.attachment
        self._uncount(route)
        route.is_lingering = True
        for leg in (route.initiator, route.acceptor):
            leg.attachment.mailbox.budget.unreserve(leg.queue.shrink())
        self._context.deadlines.set(route.deadline, now + config.linger_us)
        lingering = owner.lingering
        lingering.append(route)
        while lingering[0].state is RouteState.RELEASED:
            lingering.popleft()
        if len(lingering) > config.lingering_per_attachment_max:
            self.release(lingering.popleft(), now)

    def _uncount(self, route: Route) -> None:
        if not route.is_lingering:
            route.initiator.attachment.routes_opened -= 1
            route.initiator.attachment.account.routes -= 1

    def _become(self, route: Route, state: RouteState) -> None:
        self.counts[route.state] -= 1
        self.counts[state] += 1
        route.state = state

    def _forget_pending(self, route: Route) -> None:
        """CONNECT is not with an acceptor any more."""
        if route.listener is not None:
            route.listener.pending -= 1
            route.listener = None
        if route.state is RouteState.HANDED:
            route.acceptor.attachment.mailbox.withdraw(route.connect_key)

    def _unpark_one(self, route: Route) -> None:
        endpoint_id = route.connect.options.endpoint_id or b""
        parked = self._parked.get(endpoint_id, {})
        for order in [order for order, found in parked.items() if found is route]:
            del parked[order]
        if not parked:
            self._parked.pop(endpoint_id, None)

    def parked(self) -> Iterator[Route]:
        """All resumes that wait."""
        for routes in self._parked.values():
            yield from routes.values()
