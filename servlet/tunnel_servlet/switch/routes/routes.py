"""The table of routes: handing on CONNECT, parking resumes, binding and releasing (PROTOCOL 3.2, 6.5, 9.5)."""

from functools import partial
from itertools import islice

from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import IN_STREAM, AbortReason, Accepted, Connect, DropReason, Frame, RejectReason
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.deadlines import Deadline
from tunnel_servlet.switch.inline_id import is_public_endpoint
from tunnel_servlet.switch.model import Leg, Listener, Route, RouteState, ServedAttachment, Withdrawn
from tunnel_servlet.switch.own_packets import abort_frame, rejected_frame
from tunnel_servlet.switch.routes.accept_queues import AcceptQueues
from tunnel_servlet.switch.routes.waits import why_unanswered
from tunnel_servlet.switch.witness import Ending

__all__ = ["DENIED_TEXT", "ENDED_TEXT", "MOVED_TEXT", "REPLACED_TEXT", "RouteTable"]

MOVED_TEXT = "the answer came too late: the relay has given the connection to another endpoint"
REPLACED_TEXT = "the endpoint was replaced"
ENDED_TEXT = "the endpoint that had the connection ended before it answered"
DENIED_TEXT = "the relay's rules no longer allow this connection"  # for acceptors, which must not learn the rules

_LEFT_TEXT = "the endpoint that asked for it is attached no more"
_ENDINGS = {
    TraceReason.GONE: Ending.LOST,
    TraceReason.NO_ROUTE: Ending.LOST,
    TraceReason.REJECTED: Ending.DENIED,
    TraceReason.ABORTED: Ending.KICKED,
    TraceReason.MOVED: Ending.MOVED,
}
_SHARE = 8  # a user may have 8 routes to an acceptor for each one that still fits there, and 8 in any case (9.2)


class RouteTable:
    """All routes of the switch. One thing because each step in the life of a route changes the counts of both its
    attachments, its queues and its deadline together."""

    def __init__(self, context: SwitchContext) -> None:
        self._context = context
        self.parked: dict[bytes, dict[Route, None]] = {}  # resumes by the endpoint that they name, oldest first
        self.waiting = AcceptQueues()
        self.counts = dict.fromkeys(RouteState, 0)
        self.aborted = 0  # of those bound: they have ended, and only wait for what comes late
        self.by_number: dict[int, Route] = {}  # the oldest first
        self._newest = 0

    def __len__(self) -> int:
        return sum(self.counts.values()) - self.counts[RouteState.RELEASED]

    # --- opening

    def open(
        self, attachment: ServedAttachment, connect: Connect, frame: Frame, now: int, rule: str = ""
    ) -> Route | None:
        """Create a route that starts at `attachment`, is allowed by `rule`, and has no acceptor yet.

        Return None if a limit is reached or no reservation is left.
        """
        config, account = self._context.config, attachment.account
        if (
            len(self) >= config.routes_max
            or account.routes >= config.routes_per_user_max
            or attachment.routes_opened >= config.routes_per_attachment_max
        ):
            return None
        queue = attachment.mailbox.open(frame.source)
        if queue is None:
            return None
        owner = account.user if is_public_endpoint(attachment.identity) else ""
        route = Route(connect, frame, account.user, owner, rule, attachment.origin)
        self._newest += 1
        route.number, route.opened_us = self._newest, now
        self.by_number[route.number] = route
        # The acceptor's leg is a placeholder until `hand`.
        route.initiator = route.acceptor = Leg(attachment, frame.source, queue, route)
        route.deadline = Deadline(partial(self._timed_out, route))
        attachment.legs[frame.source] = route.initiator
        attachment.mailbox.adopt(queue, frame.source)
        attachment.routes_opened += 1
        account.routes += 1
        self.counts[RouteState.PARKED] += 1
        return route

    def hand(
        self, route: Route, acceptor: ServedAttachment, listener: Listener | None, now: int
    ) -> RejectReason | None:
        """Hand the route's CONNECT to `acceptor`, in place of an acceptor that has not answered it.

        Return None, or the reason if that is not possible; the route then stays as it is.
        """
        if route.route_key in acceptor.handed:
            return RejectReason.ID_IN_USE
        if not self._has_share(route, acceptor):
            return RejectReason.BUSY
        queue = acceptor.mailbox.open(0)
        if queue is None:
            return RejectReason.BUSY
        if route.frame is None or not acceptor.mailbox.post_connect(route.route_key, route.frame):
            acceptor.mailbox.close(queue)
            return RejectReason.BUSY
        initiator = route.initiator
        early = self._take_back(route, now) if route.state is RouteState.HANDED else []
        queue.blocked = True
        queue.back, initiator.queue.back = initiator.queue, queue
        if not route.resume:
            queue.ledger.start_at(route.frame.sequence)
        route.acceptor = Leg(acceptor, 0, queue, route)
        acceptor.handed[route.route_key] = route
        acceptor.accepted[route.user] = acceptor.accepted.get(route.user, 0) + 1
        acceptor.withdrawn.pop(route.route_key, None)
        acceptor.awaits(initiator.own_id)
        if route.resume:
            acceptor.resuming[route.user] += 1
        acceptor.on_asked(now)
        if listener is not None:
            listener.awaits(route.turn)
            route.listener = listener
        if route.state is RouteState.WAITING:
            self.waiting.turn_taken(route)
        self._become(route, RouteState.HANDED)
        self._context.deadlines.set(route.deadline, now + self._context.config.pending_timeout_us)
        for frame in early:
            self.hold(route, frame)
        return None

    def hold(self, route: Route, frame: Frame) -> bool:
        """Hold a packet that was sent before ACCEPTED. It leaves when the acceptor's id is known (3.6). Return False if
        it was dropped."""
        acceptor = route.acceptor
        put = acceptor.mailbox.put if frame.type in IN_STREAM else acceptor.mailbox.put_control
        return put(acceptor.queue, frame)

    def wait(self, route: Route, name: str, now: int) -> None:
        """Let a route wait until a listener of this name has room (2.8)."""
        self.waiting.add(name, route)
        self._become(route, RouteState.WAITING)
        self._context.deadlines.set(route.deadline, now + self._context.config.pending_timeout_us)

    def hand_again(self, route: Route, frame: Frame, now: int) -> None:
        """Hand a repeated CONNECT to the same acceptor, which answers it as before (3.3)."""
        if not route.acceptor.mailbox.post_connect(route.route_key, frame):
            self._context.counters.packets_dropped_full += 1
        if route.state is RouteState.HANDED:
            route.acceptor.attachment.on_asked(now)

    def park(self, route: Route, now: int) -> None:
        """Let a resume wait for an endpoint that it names; a repeat of the resume starts the wait again (6.5)."""
        for endpoint_id in route.endpoint_ids:
            self.parked.setdefault(endpoint_id, {})[route] = None
        self._context.deadlines.set(route.deadline, now + self._context.config.park_us)

    def unpark(self, endpoint_id: bytes, routes_max: int | None = None) -> list[Route]:
        """Remove and return the resumes that wait for this endpoint, at most `routes_max`, the oldest first."""
        found = list(islice(self.parked.get(endpoint_id, ()), routes_max))
        for route in found:
            self._unpark(route)
        return found

    def refuse_parked(self, endpoint_id: bytes, now: int) -> None:
        """Refuse the resumes that wait for this endpoint, because it was replaced (6.4)."""
        for route in self.unpark(endpoint_id):
            self.release(route, now)
            self._context.counters.refuse_connect(RejectReason.GONE)
            self.tell_rejected(route, RejectReason.GONE, REPLACED_TEXT)

    def bind(self, route: Route, own_id: int, accepted: Accepted, sequence: int, now: int) -> None:
        """Bind the route, because the acceptor echoed the route key.

        `own_id` is the acceptor's id, `sequence` its initial sequence number.
        """
        initiator, acceptor = route.initiator, route.acceptor
        acceptor.own_id = initiator.far_id = own_id
        acceptor.far_id = initiator.own_id
        initiator.far, acceptor.far = acceptor, initiator
        acceptor.attachment.legs[own_id] = acceptor
        initiator.mailbox.adopt(initiator.queue, initiator.own_id)
        acceptor.mailbox.adopt(acceptor.queue, own_id)
        if not accepted.resumed:
            initiator.queue.ledger.start_at(sequence)
        counters = self._context.counters
        counters.packets_replaced += acceptor.mailbox.withdraw_connect(route.route_key)  # a repeat
        self._forget_pending(route)
        self._become(route, RouteState.BOUND)
        route.frame = None
        self._context.deadlines.clear(route.deadline)
        self.pace(route, now)
        acceptor.queue.bind(own_id)
        if not accepted.resumed:
            for queue in (acceptor.queue, initiator.queue):
                if queue.is_promised_too_much():
                    queue.announce()
        route.bound_us = now
        counters.routes_bound += 1
        counters.routes_resumed += accepted.resumed
        event = TraceEvent.ROUTE_RESUMED if accepted.resumed else TraceEvent.ROUTE_BOUND
        self._context.trace(
            event, now, connection=initiator.own_id, peer=own_id, text=initiator.attachment.account.user
        )
        witness, by = self._context.witness, route.accepted_by()
        if witness is not None and by is not None:
            witness.on_opened(route.opening(), by)

    def pace(self, route: Route, now: int) -> None:
        """Set the rates of a bound route: those of the user who opened it and, unless an exit accepted it, those of
        the user who serves it (9.8). If a stranger opened the route (2.11), only the rates of the serving user hold."""
        acceptor = route.acceptor.attachment
        server = "" if acceptor.is_exit else acceptor.account.user
        queues = route.acceptor.queue, route.initiator.queue
        opener = "" if route.owner else route.user
        self._context.pacing.assign(*queues, opener, server, route.target, now)

    # --- ending

    def shut(self, leg: Leg, now: int, *, is_abort: bool) -> None:
        """Note that this side sent SHUTDOWN or ABORT, which has been forwarded. If both sides have sent one, release
        the route; otherwise let it linger (9.5)."""
        route = leg.route
        leg.has_shut = True
        if is_abort:  # it has ended, even if the other side says nothing any more
            self.aborted += not route.is_aborted
            route.is_aborted = True
            self._note_ended(route, now, None, "")
        if leg.far.has_shut:
            self.release(route, now)
        elif not route.is_lingering:
            self._linger(route, now)

    def release(self, route: Route, now: int, reason: TraceReason | None = None, text: str = "") -> None:
        """Forget the route. If it was bound, control packets that wait for either side still leave. `text` says why it
        ends, for the witness."""
        initiator, acceptor, state = route.initiator, route.acceptor, route.state
        if state is RouteState.BOUND:
            self._note_ended(route, now, reason, text)
        self._context.deadlines.clear(route.deadline)
        self._forget_pending(route)
        if state is RouteState.PARKED:
            self._unpark(route)
        elif state is RouteState.WAITING:
            self.waiting.remove(route)
        self._become(route, RouteState.RELEASED)
        self.aborted -= route.is_aborted
        del self.by_number[route.number]
        self._uncount(route)
        initiator.attachment.lingering.pop(route, None)
        if acceptor is not initiator:
            self._context.counters.packets_ended += acceptor.mailbox.withdraw_connect(route.route_key)
            self._forget_handed(route)
            acceptor.mailbox.close(acceptor.queue)
            acceptor.attachment.legs.pop(acceptor.own_id, None)
        initiator.mailbox.close(initiator.queue)
        del initiator.attachment.legs[initiator.own_id]
        counters = self._context.counters
        counters.routes_released += 1
        counters.routes_closed += reason is None and state is RouteState.BOUND
        counters.routes_moved += reason is TraceReason.MOVED
        counters.routes_lost += reason in (TraceReason.GONE, TraceReason.NO_ROUTE)
        self._context.trace(
            TraceEvent.ROUTE_RELEASED,
            now,
            connection=initiator.own_id,
            peer=acceptor.own_id,
            reason=reason,
            text=state.value,
        )

    def leave(self, route: Route, now: int) -> bool:
        """Forget a route whose connection goes on at another relay. Return False, and change nothing, if its user has
        left too many: an acceptor that did not move keeps the connection for minutes, which must not add up."""
        config, account = self._context.config, route.initiator.attachment.account
        may_be_kept = route.state in (RouteState.HANDED, RouteState.BOUND) and not route.is_lingering
        if may_be_kept and not account.may_leave(now, config.attachment_timeout_us, config.routes_per_user_max):
            return False
        self._context.counters.packets_ended += route.state in (RouteState.WAITING, RouteState.PARKED)
        self.release(route, now, TraceReason.MOVED)
        return True

    def release_all(self, attachment: ServedAttachment, reason: DropReason, now: int, *, has_left: bool) -> None:
        """Release all routes of a removed attachment and notify the other sides (6.4, 9.5).

        With `has_left`, the endpoint had said that it leaves: a connection that was never opened, or that one side has
        ended, is not lost. No DROPPED may overtake the SHUTDOWN or ABORT that still waits for the other side.
        """
        why = TraceReason.GONE if reason is DropReason.GONE else TraceReason.NO_ROUTE
        handed = [route for route in attachment.handed.values() if route.state is RouteState.HANDED]
        for route in [*(leg.route for leg in attachment.legs.values()), *handed]:
            if route.state is RouteState.RELEASED:
                continue  # both of its legs were at this attachment
            bound, handed_on = route.state is RouteState.BOUND, route.state is RouteState.HANDED
            is_over = has_left and (route.is_lingering or not bound)
            self._context.counters.packets_ended += route.state in (RouteState.WAITING, RouteState.PARKED)
            other = route.initiator if route.acceptor.attachment is attachment else route.acceptor
            self.release(route, now, None if is_over else why)
            if route.initiator.attachment is attachment and not bound:
                self.note_refused(route, RejectReason.GONE, _LEFT_TEXT)
                if handed_on and has_left:  # an acceptor that accepts later would wait for a resume for minutes
                    other.attachment.withdraw(route.route_key, AbortReason.GONE, _LEFT_TEXT, now)
            if other.attachment is attachment or (bound and is_over):
                continue
            if bound:
                self.tell_dropped(other.attachment, other.own_id, reason)
            elif other is route.initiator and has_left and not route.resume:
                self.tell_rejected(route, RejectReason.SHUTTING_DOWN, ENDED_TEXT)
            elif other is route.initiator and (reason is DropReason.GONE or not route.resume):
                self.tell_rejected(route, RejectReason.GONE, "the accepting endpoint is no longer attached")

    def deny(self, route: Route, why: str, now: int) -> None:
        """Release a route that the rules no longer allow, and tell both endpoints (9.7). The initiator gets `why`."""
        self._context.counters.routes_denied += 1
        self._cut(route, TraceReason.REJECTED, (AbortReason.DENIED, RejectReason.DENIED), (why, DENIED_TEXT), now)

    def kick(self, route: Route, why: str, now: int) -> None:
        """Release a route that the operator ends, and tell both endpoints why (9.10)."""
        self._context.counters.routes_kicked += 1
        self._cut(route, TraceReason.ABORTED, (AbortReason.APPLICATION, RejectReason.REFUSED), (why, why), now)

    def _cut(
        self,
        route: Route,
        trace_reason: TraceReason,
        reasons: tuple[AbortReason, RejectReason],
        texts: tuple[str, str],
        now: int,
    ) -> None:
        """Release a route and tell both endpoints, each with its text: with ABORT if the route is bound, else the
        initiator with REJECTED."""
        initiator, acceptor, state, frame = route.initiator, route.acceptor, route.state, route.frame
        (reason, rejection), (why, acceptors_text) = reasons, texts
        self.release(route, now, trace_reason, why)
        if state is RouteState.BOUND:
            for leg, text in ((initiator, why), (acceptor, acceptors_text)):
                if not self._tell_aborted(leg.attachment, leg.far_id, leg.own_id, reason, text):
                    self.tell_dropped(leg.attachment, leg.own_id, DropReason.GONE)
            return
        self.tell_rejected(route, rejection, why)
        if state is not RouteState.HANDED:
            return
        # The acceptor may have the CONNECT already, and answer it later.
        acceptor.attachment.withdraw(route.route_key, reason, acceptors_text, now)
        if route.resume and frame is not None:
            self._tell_resume_ended(acceptor.attachment, frame, reason, acceptors_text)

    def tell_resume_denied(self, acceptor: ServedAttachment, frame: Frame) -> None:
        """Tell the acceptor that a resume was denied."""
        self._tell_resume_ended(acceptor, frame, AbortReason.DENIED, DENIED_TEXT)

    def _tell_resume_ended(self, acceptor: ServedAttachment, frame: Frame, reason: AbortReason, text: str) -> None:
        """Tell the acceptor that a resume, a CONNECT with both ids, has ended. Otherwise the acceptor would wait for
        the resume for minutes.

        This is safe although any user can name any ids: the acceptor ignores ids that are not those of one of its
        connections, which no other user can guess. And such packets fill at most a quarter of the places for general
        packets in its mailbox.
        """
        if frame.destination and len(acceptor.mailbox.general) < self._context.config.general_packets_max // 4:
            self._tell_aborted(acceptor, frame.source, frame.destination, reason, text)

    def tell_withdrawn(self, attachment: ServedAttachment, far_id: int, own_id: int, withdrawn: Withdrawn) -> None:
        """Queue the ABORT that answers ACCEPTED for a CONNECT that is no longer meant for the attachment."""
        frame = abort_frame(far_id, own_id, withdrawn.reason, withdrawn.text)
        attachment.mailbox.post(("denied", own_id), frame)

    def _tell_aborted(
        self, attachment: ServedAttachment, far_id: int, own_id: int, reason: AbortReason, text: str
    ) -> bool:
        """Queue ABORT for an id of the attachment. Return False if there is no room for it."""
        return attachment.mailbox.post(("denied", own_id), abort_frame(far_id, own_id, reason, text))

    def tell_dropped(self, attachment: ServedAttachment, own_id: int, reason: DropReason) -> None:
        """Queue DROPPED for an id that has no route; at most one waits for each id (6.7)."""
        attachment.mailbox.notice(own_id, reason)

    def tell_rejected(self, route: Route, reason: int, text: str) -> None:
        """Queue a REJECTED from the relay for a route that was just released."""
        initiator = route.initiator
        frame = rejected_frame(initiator.own_id, route.route_key, reason, text)
        initiator.mailbox.post(("rejected", initiator.own_id), frame)
        self.note_refused(route, reason, text)

    def note_refused(self, route: Route, reason: int, text: str, *, is_answer: bool = False) -> None:
        """Let the witness know that a route was released without having been bound. `is_answer`: its acceptor said so.

        A route whose initiator is to ask again is not refused.
        """
        if self._context.witness is not None:
            opening, acceptor = route.opening(), route.accepted_by()
            self._context.witness.on_refused(opening, acceptor, reason, text, is_answer=is_answer)

    def note_stopped(self, attachment: ServedAttachment, now: int) -> None:
        """Let the witness know of all open routes that began at this attachment, because the relay stops."""
        for leg in attachment.legs.values():
            if leg is leg.route.initiator and leg.route.state is RouteState.BOUND:
                self._note_ended(leg.route, now, None, "", is_stop=True)

    # --- inside

    def _note_ended(
        self, route: Route, now: int, reason: TraceReason | None, text: str, *, is_stop: bool = False
    ) -> None:
        """Let the witness know that a bound route ends."""
        witness = self._context.witness
        acceptor = None if witness is None else route.accepted_by()
        if witness is None or acceptor is None or route.is_noted:
            return
        route.is_noted = True
        if is_stop:
            why = Ending.STOPPED
        elif reason is not None:
            why = _ENDINGS[reason]
        else:
            why = Ending.ABORTED if route.is_aborted else Ending.CLOSED
        witness.on_ended(
            route.opening(),
            acceptor,
            why,
            text,
            sent_bytes=route.acceptor.queue.ledger.left_bytes,
            received_bytes=route.initiator.queue.ledger.left_bytes,
            lasted_us=now - route.bound_us,
        )

    def _timed_out(self, route: Route, now: int) -> None:
        state, why = route.state, why_unanswered(route, now)
        self.release(route, now)
        if state is RouteState.WAITING:
            self.tell_rejected(route, RejectReason.BUSY, "no listener had room for the connection in time")
        self._context.counters.connects_ignored += state is RouteState.PARKED
        # An unanswered resume is not refused, because that would end a stream that can wait.
        if state is RouteState.HANDED and not route.resume:
            self.tell_rejected(route, RejectReason.TIMED_OUT, why)

    def _linger(self, route: Route, now: int) -> None:
        """Handle the first SHUTDOWN or ABORT: give up the route's reservations and stop counting it as open."""
        config, owner = self._context.config, route.initiator.attachment
        self._uncount(route)
        route.is_lingering = True
        for leg in (route.initiator, route.acceptor):
            leg.mailbox.budget.unreserve(leg.queue.shrink())
        self._context.deadlines.set(route.deadline, now + config.linger_us)
        owner.lingering[route] = None
        if len(owner.lingering) > config.lingering_per_attachment_max:
            self.release(next(iter(owner.lingering)), now)

    def _uncount(self, route: Route) -> None:
        if not route.is_lingering:
            route.initiator.attachment.routes_opened -= 1
            route.initiator.attachment.account.routes -= 1

    def _become(self, route: Route, state: RouteState) -> None:
        self.counts[route.state] -= 1
        self.counts[state] += 1
        route.state = state

    def _forget_pending(self, route: Route) -> None:
        """Undo the counts of a CONNECT that was handed on and is no longer pending."""
        if route.listener is not None:
            route.listener.unawait(route.turn)
            self.waiting.look_at(route.listener.name)
            route.listener = None
        if route.state is RouteState.HANDED:
            acceptor = route.acceptor.attachment
            acceptor.unawait(route.initiator.own_id)
            if route.resume:
                acceptor.resuming[route.user] -= 1
                if not acceptor.resuming[route.user]:
                    del acceptor.resuming[route.user]

    def _has_share(self, route: Route, acceptor: ServedAttachment) -> bool:
        """Whether the user may have another route to this acceptor.

        One user thus leaves a ninth of the acceptor's room to the others. Of resumes, only those without an answer
        count: a user may have as many connections as before, but anybody who knows the acceptor's id can ask for some
        that never were.
        """
        has = acceptor.resuming if route.resume else acceptor.accepted
        free = acceptor.mailbox.budget.unreserved_bytes() // self._context.config.reserved_bytes
        return has.get(route.user, 0) < _SHARE * max(1, free)

    def _take_back(self, route: Route, now: int) -> list[Frame]:
        """Undo `hand`, except for the state. Return the packets that the initiator has sent before ACCEPTED. An
        ACCEPTED that comes after all is answered with ABORT."""
        acceptor = route.acceptor
        acceptor.mailbox.withdraw_connect(route.route_key)
        self._forget_pending(route)
        self._forget_handed(route)
        acceptor.attachment.withdraw(route.route_key, AbortReason.GONE, MOVED_TEXT, now)
        early = acceptor.queue.take_held()
        acceptor.mailbox.close(acceptor.queue)
        return early

    def _forget_handed(self, route: Route) -> None:
        acceptor = route.acceptor.attachment
        del acceptor.handed[route.route_key]
        acceptor.accepted[route.user] -= 1
        if not acceptor.accepted[route.user]:
            del acceptor.accepted[route.user]

    def _unpark(self, route: Route) -> None:
        for endpoint_id in route.endpoint_ids:
            parked = self.parked.get(endpoint_id, {})
            parked.pop(route, None)
            if not parked:
                self.parked.pop(endpoint_id, None)
