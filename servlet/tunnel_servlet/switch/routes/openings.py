"""Opening and resuming routes: the relay's handling of CONNECT, ACCEPTED and REJECTED (PROTOCOL 3.2, 3.6, 6.5, 6.6)."""

from functools import partial

import msgspec

from tunnel.traces.record import TraceReason
from tunnel.wire import (
    ROUTE_KEY_SIZE,
    Accepted,
    Connect,
    DropReason,
    Frame,
    Options,
    Packet,
    RejectReason,
    Target,
    asked_about,
    decode_accepted,
    decode_connect,
    decode_rejected,
    encode_accepted,
    encode_connect,
    frame_of,
    inline_exit_id,
    is_inline_exit,
)
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.deadlines import Deadline
from tunnel_servlet.switch.decisions import Authorise, Decision, Deny, Hand, HandTo, MayListen
from tunnel_servlet.switch.inline_id import PUBLIC_USER, is_public_endpoint, strangers_of
from tunnel_servlet.switch.model import Leg, Listener, Route, RouteState, ServedAttachment, named_ids
from tunnel_servlet.switch.own_packets import rejected_frame
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes.routes import ENDED_TEXT, REPLACED_TEXT, RouteTable
from tunnel_servlet.switch.routes.services import Services
from tunnel_servlet.switch.routes.waits import oldest_unanswered, why_unanswered
from tunnel_servlet.switch.stats import Undelivered
from tunnel_servlet.switch.witness import Opening

__all__ = ["Openings", "may_accept"]

Refusal = tuple[int, str]  # reason and text of REJECTED
Acceptor = tuple[ServedAttachment, Listener | None]
_NO_SERVICE: Refusal = (RejectReason.NO_SUCH_SERVICE, "no endpoint listens under this name")
_NO_EXIT: Refusal = (RejectReason.NO_EXIT, "no exit is attached")

_AT_ONCE = 64  # CONNECTs that are handed on in one turn, because of one packet or timer: each takes 50 to 100 us
_CONNECT_BYTES_MAX = 4096  # PROTOCOL 2.1; limited because a route keeps its CONNECT until it is bound


class Openings:
    """Opens routes. `authorise` decides whether a user may reach a target; this class chooses the acceptor. `answer`
    decides the same when a user only asks (3.14).

    One thing because an acceptor is chosen in the same way for a new CONNECT, one that has waited, and one that moves.
    """

    def __init__(
        self,
        epoch: int,
        context: SwitchContext,
        registry: Registry,
        routes: RouteTable,
        services: Services,
        authorise: Authorise,
        answer: Authorise,
    ) -> None:
        self.is_draining = False  # new connections are refused
        self._inline_exit = inline_exit_id(epoch)
        self._context = context
        self._registry = registry
        self._routes = routes
        self._services = services
        self._authorise = authorise
        self._answer = answer
        self._settled_us: int | None = None  # until then, services and exits may still be attaching

    def on_attached(self, attachment: ServedAttachment, now: int) -> None:
        """Hand the resumes that waited for this new attachment to it (6.5)."""
        if self._settled_us is None and attachment.identity != self._inline_exit:
            self._settled_us = now + self._context.config.settle_us
        self._hand_parked(attachment, now)

    def _hand_parked(self, attachment: ServedAttachment, now: int) -> None:
        """Hand some of the resumes that wait for this attachment to it, and the others when users have had turns."""
        if attachment.is_gone:
            return
        for route in self._routes.unpark(attachment.identity, _AT_ONCE):
            # The rules may have changed since the resume was parked, and nothing was known of this attachment then.
            decision = self._authorise(route.asks_as, route.target)
            refusal = self._hand_resume(route, attachment, decision, now)
            if refusal is not None:
                self._context.counters.refuse_connect(refusal[0])
                self._routes.tell_rejected(route, *refusal)
            elif route.state is RouteState.RELEASED:
                self._context.counters.connects_ignored += 1
        if attachment.identity in self._routes.parked:
            self._context.deadlines.set(Deadline(partial(self._hand_parked, attachment)), now + 1)

    # --- packets

    def connect(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle CONNECT: authorise it and hand it on, or refuse it (3.2)."""
        self._context.counters.connects += 1
        route_key = bytes(frame.payload[:ROUTE_KEY_SIZE])
        if not frame.source or len(route_key) < ROUTE_KEY_SIZE:
            self._context.drop(Undelivered.INVALID, frame, now)
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
                if refusal is None and frame.source not in attachment.legs:
                    self._context.drop(Undelivered.IGNORED, frame, now)
        if refusal is not None:
            self._context.counters.refuse_connect(refusal[0])
            if self._context.witness is not None and refusal[0] != RejectReason.ALLOWED:
                self._context.witness.on_refused(_asked(attachment, frame, connect), None, *refusal)
            answer = rejected_frame(frame.source, route_key, *refusal)
            attachment.mailbox.post(("rejected", frame.source), answer)

    def handle_accepted(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle ACCEPTED: bind the route if the packet comes from the attachment that the CONNECT was handed to (3.2).

        ACCEPTED is forwarded if it belongs to the route, even when it is a repeat.
        """
        accepted = decode_accepted(frame.payload)
        if accepted is None or not frame.destination:
            self._context.drop(Undelivered.INVALID, frame, now)
            return
        route = attachment.handed.get(accepted.route_key)
        if route is None or route.initiator.own_id != frame.source:
            self._context.drop(Undelivered.NO_ROUTE, frame, now)
            withdrawn = attachment.withdrawn.get(accepted.route_key)
            if withdrawn is not None and withdrawn.until_us > now:
                self._routes.tell_withdrawn(attachment, frame.source, frame.destination, withdrawn)
            elif frame.destination not in attachment.legs:
                self._routes.tell_dropped(attachment, frame.destination, DropReason.NO_ROUTE)
            return
        attachment.has_encrypted |= accepted.options.encryption is not None
        if route.state is RouteState.HANDED and frame.destination not in attachment.legs:
            self._routes.bind(route, frame.destination, accepted, frame.sequence, now)
        if route.acceptor.own_id != frame.destination:
            self._context.drop(Undelivered.MISADDRESSED, frame, now)
            return
        initiator = route.initiator
        if not initiator.mailbox.put_control(initiator.queue, self._with_small_packets(route, frame, accepted)):
            self._context.trace_dropped(frame, TraceReason.FULL, now)

    def handle_rejected(self, attachment: ServedAttachment, frame: Frame, now: int) -> None:
        """Handle REJECTED: forward it only if it comes from the attachment that the CONNECT was handed to (9.1)."""
        rejected = decode_rejected(frame.payload)
        route = attachment.handed.get(rejected.route_key) if rejected is not None else None
        if route is None or route.initiator.own_id != frame.source:
            self._context.drop(Undelivered.INVALID, frame, now)
            return
        initiator = route.initiator
        self._routes.release(route, now)
        if rejected is not None:
            self._routes.note_refused(route, rejected.reason, rejected.text, is_answer=True)
        initiator.mailbox.post(("rejected", initiator.own_id), frame)

    # --- inside

    def _stamp(self, frame: Frame, connect: Connect, attachment: ServedAttachment) -> Frame:
        """Return the CONNECT with the authenticated user, which replaces any user that the sender named (2.1), and with
        a largest packet that the user's rates can pass on smoothly (9.8)."""
        user, is_stranger = attachment.account.user, is_public_endpoint(attachment.identity)
        packet_bytes_max = self._context.pacing.packet_bytes_max(user, connect.target)
        name = PUBLIC_USER if is_stranger else user
        options = msgspec.structs.replace(_lowered(connect.options, packet_bytes_max), user=name)
        return _with_payload(frame, encode_connect(msgspec.structs.replace(connect, options=options)))

    def _with_small_packets(self, route: Route, frame: Frame, accepted: Accepted) -> Frame:
        """Return ACCEPTED with a largest packet that the rates of the route can pass on smoothly (9.8)."""
        packet_bytes_max = route.acceptor.queue.paced_packet_bytes
        options = _lowered(accepted.options, packet_bytes_max)
        if options is accepted.options:
            return frame
        return _with_payload(frame, encode_accepted(msgspec.structs.replace(accepted, options=options)))

    def _repeat(self, leg: Leg, connect: Connect, frame: Frame, now: int) -> Refusal | None:
        """Handle a repeated CONNECT: hand it to the same acceptor, which answers as before (3.3).

        The first copy may have been lost, and the acceptor then acts on the repeat. So the repeat must name the target
        that was authorised.
        """
        route = leg.route
        named = (connect.route_key, connect.target)
        if leg is not route.initiator or named != (route.route_key, route.target):
            return RejectReason.ID_IN_USE, "another connection has this id"
        if route.resume and not connect.resume:
            # Handing it on would open a connection at an endpoint that was not chosen for it (6.5).
            self._context.drop(Undelivered.IGNORED, frame, now)
            return None
        stamped = self._stamp(frame, connect, leg.attachment)
        route.move = max(route.move, connect.options.move or 0)
        if route.state is RouteState.WAITING:
            self._replace(route, stamped)
        elif route.state is not RouteState.PARKED:
            self._hand_again(route, stamped, now)
        elif connect.resume and named_ids(connect) == route.endpoint_ids:
            self._replace(route, stamped)
            self._routes.park(route, now)
        else:
            self._context.drop(Undelivered.IGNORED, frame, now)
        return None

    def _replace(self, route: Route, frame: Frame) -> None:
        """Let a repeated CONNECT wait at the relay in place of the copy that waited so far."""
        route.frame = frame
        self._context.counters.packets_replaced += 1

    def _open(self, attachment: ServedAttachment, connect: Connect, frame: Frame, now: int) -> Refusal | None:
        """Open a new route. A resume that finds no room is ignored: a refusal would end a stream that can wait."""
        user = attachment.account.user
        if self.is_draining:
            return None if connect.resume else (RejectReason.SHUTTING_DOWN, "the relay is shutting down")
        witness = self._context.witness
        if witness is not None and (why := witness.why_closed(user)):
            return None if connect.resume else (RejectReason.BUSY, why)
        asks_as = strangers_of(user) if is_public_endpoint(attachment.identity) else user
        asked = asked_about(connect.target)
        decision = self._authorise(asks_as, connect.target) if asked is None else self._answer(asks_as, asked)
        if isinstance(decision, Deny):
            return self._deny(connect, frame, decision, now)
        if asked is not None:  # the answer to a question is no refusal, but leaves as one
            waits = oldest_unanswered(attachment, asked)
            return RejectReason.ALLOWED, "" if waits is None else why_unanswered(waits, now)
        refusal = self._refuse_resume(connect, now) if connect.resume else None
        if refusal is not None:
            return refusal
        stamped = self._stamp(frame, connect, attachment)
        route = self._routes.open(attachment, connect, stamped, now, decision.rule)
        if route is None:
            return None if connect.resume else (RejectReason.BUSY, "the relay has no room for another connection")
        if not connect.resume:
            return self._hand(route, decision, connect.target, now)
        endpoint = self._named(route)
        if endpoint is not None:
            return self._hand_resume(route, endpoint, decision, now)
        self._context.counters.resumes_parked += 1
        self._routes.park(route, now)
        return None

    def _deny(self, connect: Connect, frame: Frame, decision: Deny, now: int) -> Refusal | None:
        """Refuse a CONNECT that the rules deny. The acceptor of a resume learns of the refusal, too.

        If the acceptor may be about to attach again, as the initiator did, the resume is not answered: the initiator
        repeats it (6.5).
        """
        endpoint_id = connect.options.endpoint_id
        if connect.resume and endpoint_id is not None:
            acceptor = self._registry.by_id.get(endpoint_id)
            if acceptor is not None:
                self._routes.tell_resume_denied(acceptor, frame)
            elif not self._is_settled(now) and self._refuse_resume(connect, now) is None:
                return None
        return decision.reason, decision.text

    def _is_settled(self, now: int) -> bool:
        """Whether the endpoints have had time to attach again after a restart of the relay."""
        return self._settled_us is not None and now >= self._settled_us

    def _named(self, route: Route) -> ServedAttachment | None:
        """Return the endpoint here that a resume names, which may sit at several relays (6.11)."""
        found = (self._registry.by_id.get(endpoint_id) for endpoint_id in route.endpoint_ids)
        return next((one for one in found if one is not None), None)

    def _refuse_resume(self, connect: Connect, now: int) -> Refusal | None:
        """Return the refusal of a resume, or None if the endpoint that it names may still exist."""
        if connect.options.endpoint_id is None:
            return RejectReason.MALFORMED, "a resume must name the acceptor's endpoint id"
        for endpoint_id in named_ids(connect):
            if is_inline_exit(endpoint_id) and endpoint_id != self._inline_exit:
                return RejectReason.GONE, "the relay was restarted, and the exit in its process lost its connections"
            if self._registry.was_replaced(endpoint_id, now):
                return RejectReason.GONE, REPLACED_TEXT
        return None

    def _hand(self, route: Route, decision: Hand, target: Target, now: int) -> Refusal | None:
        """Choose an acceptor: the first one with room, which then moves to the end of the rotation."""
        if decision.to is HandTo.SERVICE:
            return self._hand_to_listener(route, decision.name or target.host, now)
        return self._hand_to_exit(route, decision.name, now)

    def _hand_to_exit(self, route: Route, name: str, now: int) -> Refusal | None:
        """Hand the route to an exit in a process of its own, even if that has no room, as long as one is attached from
        which something comes; otherwise to the inline exit (6.9), and to a silent one if there is no other. With a
        `name`, only exits of this name count."""
        attached: list[Acceptor] = [(one, None) for one in self._registry.exits if name in ("", one.name)]
        heard = [one for one in attached if not one[0].is_silent(now)]
        inline = [] if self._may_be_encrypted(route, now) else heard
        exits = _separate(heard) or inline or _separate(attached) or attached
        is_inline = not _separate(exits)
        if exits and is_inline and not name and not self._is_settled(now) and self._registry.expected.may_come():
            self._routes.release(route, now)  # another one may be on its way back, and the initiator repeats CONNECT
            return None
        for one, _ in _separate(attached) if heard else ():
            if one.is_silent(now):
                self._report_silent(one)
        return self._hand_to(route, exits, _NO_EXIT, now)

    def _hand_to_listener(self, route: Route, name: str, now: int) -> Refusal | None:
        """Hand the route to a listener of this name. If none has room, or other routes wait, it waits, too (2.8)."""
        listeners = self._listeners(name, route.owner, now)
        has_room = any(listener.has_room(route.turn) for listener in listeners)
        if name in self._routes.waiting or (listeners and not has_room):
            self._routes.wait(route, name, now)
            self._routes.waiting.look_at(name)
            return None
        return self._hand_to(route, _acceptors(listeners), _NO_SERVICE, now)

    def serve_waiting(self, now: int) -> None:
        """Hand waiting routes to the listeners that have room now; refuse them if their service is down."""
        waiting = self._routes.waiting
        while (name := waiting.poll_changed()) is not None:
            while (route := self._next_waiting(name, now)) is not None:
                listeners = self._listeners(name, route.owner, now)
                refusal = self._hand_to(route, _acceptors(listeners), _NO_SERVICE, now)
                if refusal is not None:
                    self._context.counters.refuse_connect(refusal[0])
                    self._routes.tell_rejected(route, *refusal)
                elif route.state is RouteState.RELEASED:
                    self._context.counters.connects_ignored += 1

    def _next_waiting(self, name: str, now: int) -> Route | None:
        """Return the waiting route that is to be handed next, or None if none can be. No user waits for another who
        has as many unanswered CONNECTs as are free, nor for strangers, whom only some of the listeners accept."""
        candidates: dict[str, list[Listener]] = {}  # by `Route.owner`
        for route in self._routes.waiting.firsts(name):
            if route.owner not in candidates:
                candidates[route.owner] = self._listeners(name, route.owner, now)
            listeners = candidates[route.owner]
            if not listeners or any(listener.has_room(route.turn) for listener in listeners):
                return route
        return None

    def _hand_to(self, route: Route, candidates: list[Acceptor], refusal: Refusal, now: int) -> Refusal | None:
        """Hand the route to the first of the candidates that takes it.

        If none does, release the route. Return the refusal, or None if the initiator is not to be refused.
        """
        for acceptor, listener in candidates:
            if listener is not None and not listener.has_room(route.turn):
                continue
            reason = self._routes.hand(route, acceptor, listener, now)
            if reason is None:
                self._take_turn(acceptor, listener)
                return None
            refusal = (
                reason,
                "another connection has this route key"
                if reason is RejectReason.ID_IN_USE
                else "the acceptor's mailbox has no room left for this user",
            )
        self._routes.release(route, now)
        if not candidates and not self._is_settled(now):
            return None  # an acceptor may be about to attach again, and the initiator repeats CONNECT (3.1, 6.5)
        return refusal

    # --- other acceptors

    def leave(self, attachment: ServedAttachment, now: int, *, has_ended: bool = False) -> None:
        """Let an exit get no further connections, or end an attachment, and hand over the CONNECTs without an answer
        (6.10). `has_ended`: the endpoint answers nothing any more, so refuse what no other one takes."""
        self._registry.leave(attachment)
        if has_ended:
            self._services.take_down(attachment, now)
        for route in self.hand_over(attachment, now):
            self._routes.release(route, now)  # its initiator repeats CONNECT
            self._context.counters.connects_ignored += 1
        for route in list(attachment.handed.values()) if has_ended else ():
            if route.state is RouteState.HANDED and not route.resume:
                self._routes.release(route, now)
                self._context.counters.refuse_connect(RejectReason.SHUTTING_DOWN)
                self._routes.tell_rejected(route, RejectReason.SHUTTING_DOWN, ENDED_TEXT)

    def hand_over(self, attachment: ServedAttachment, now: int) -> list[Route]:
        """Give the CONNECTs that the attachment, which no longer accepts such ones, has not answered to another
        acceptor. If there is none, they stay.

        At a service, only some of them are handed over at once, since other users wait meanwhile. Return the rest: each
        is handed over when its initiator repeats it.
        """
        tried, left = 0, list[Route]()
        for route in [route for route in attachment.handed.values() if not _may_stay(route)]:
            others = self._others(route, now)
            if others and tried == _AT_ONCE and route.listener is not None:
                left.append(route)
            elif others:
                tried += 1
                self._move(route, others, now)
        return left

    def _hand_again(self, route: Route, frame: Frame, now: int) -> None:
        """Hand a repeated CONNECT to the same acceptor; if that is silent, or accepts such ones no longer, to another
        one if there is one (6.10)."""
        if route.state is RouteState.HANDED:
            route.frame = frame
            present = route.acceptor.attachment
            waits = present.mailbox.has_connect(route.route_key)
            is_vain = (not route.resume and present.is_silent(now)) or not _may_stay(route)
            others = self._others(route, now) if is_vain else []
            if others and self._move(route, others, now):
                self._context.counters.packets_replaced += waits  # the other one gets the repeat alone
                return
        self._routes.hand_again(route, frame, now)

    def _others(self, route: Route, now: int) -> list[Acceptor]:
        """Return the other acceptors that have room for a route without an answer, and from which something comes."""
        present = route.acceptor.attachment
        return [
            (acceptor, listener)
            for acceptor, listener in self._like(route)
            if acceptor is not present
            and not acceptor.is_silent(now)
            and (listener is None or listener.has_room(route.turn))
        ]

    def _move(self, route: Route, others: list[Acceptor], now: int) -> bool:
        """Hand a route whose acceptor has not answered to another one. Return False, and change nothing, if none of
        these takes it."""
        present = route.acceptor.attachment
        decision = self._authorise(route.asks_as, route.target)
        if isinstance(decision, Deny):
            return False  # the review ends a route that the rules no longer allow
        may_listen = self._services.may_listen
        others = [one for one in others if may_accept(one[0], decision, route, may_listen)]
        if others and present.is_silent(now):
            self._report_silent(present)
        inline = [] if self._may_be_encrypted(route, now) else others
        for acceptor, listener in _separate(others) or inline:
            if self._routes.hand(route, acceptor, listener, now) is None:
                self._context.counters.connects_moved += 1
                self._take_turn(acceptor, listener)
                return True
        return False

    def _may_be_encrypted(self, route: Route, now: int) -> bool:
        """Whether a silent exit would encrypt the route, so that it must not go to the inline one, which never does."""
        if not route.offers_encryption or route.listener is not None:
            return False
        return any(one.has_encrypted and one.is_silent(now) for one in self._registry.exits)

    def _like(self, route: Route) -> list[Acceptor]:
        """Return all acceptors of the same kind as the one to which the route was handed, in rotation order."""
        if route.listener is not None:
            return _acceptors(self._services.candidates(route.listener.name, route.owner))
        return [(one, None) for one in self._registry.exits]

    def _listeners(self, name: str, owner: str, now: int) -> list[Listener]:
        """Return the listeners of this name in rotation order; those that are silent come last."""
        return sorted(self._services.candidates(name, owner), key=lambda one: one.attachment.is_silent(now))

    def _report_silent(self, attachment: ServedAttachment) -> None:
        """Report, once for each silence, that connections go past this exit."""
        if attachment.is_exit and not attachment.is_silence_known:
            attachment.is_silence_known = True
            self._registry.expected.silent(attachment.account.user, attachment.name)

    def _take_turn(self, acceptor: ServedAttachment, listener: Listener | None) -> None:
        if listener is not None:
            self._services.on_chosen(listener)
        else:
            self._registry.exits.remove(acceptor)
            self._registry.exits.append(acceptor)

    def _hand_resume(self, route: Route, endpoint: ServedAttachment, decision: Decision, now: int) -> Refusal | None:
        """Hand a resume to the endpoint that it names, which accepts or rejects it (6.5, 6.6).

        Return the refusal if the rules do not let this endpoint accept the connection; the route is then released.
        """
        if isinstance(decision, Deny):
            refusal: Refusal | None = (decision.reason, decision.text)
        elif not may_accept(endpoint, decision, route, self._services.may_listen):
            # An endpoint that does not know the connection gives the same answer, so the answer reveals no user.
            refusal = RejectReason.GONE, "no endpoint with this id accepts such connections"
        else:
            refusal = None
            if self._routes.hand(route, endpoint, None, now) is None:
                return None
        self._routes.release(route, now)  # if there is no refusal, the initiator repeats CONNECT after a second
        return refusal


def _may_stay(route: Route) -> bool:
    """Whether a route may stay at its acceptor: that still takes such ones, or the route needs no answer."""
    if route.state is not RouteState.HANDED or route.resume:
        return True
    return route.listener.is_up if route.listener is not None else not route.acceptor.attachment.is_leaving


def may_accept(endpoint: ServedAttachment, decision: Hand, route: Route, may_listen: MayListen) -> bool:
    """Whether the rules let this endpoint accept the route.

    Announcements do not count: after a restart of the relay there are none yet, and streams outlive their listener.
    """
    if decision.to is HandTo.SERVICE:
        user = endpoint.account.user
        return route.owner in ("", user) and may_listen(user, decision.name or route.target.host)
    return endpoint.is_exit and decision.name in ("", endpoint.claim)


def _asked(attachment: ServedAttachment, frame: Frame, connect: Connect | None) -> Opening:
    """Return what a witness may know of a CONNECT that the relay refuses."""
    endpoint, is_stranger = attachment.facts(), is_public_endpoint(attachment.identity)
    if connect is None:
        return Opening(endpoint, frame.source)
    asked = asked_about(connect.target)
    return Opening(
        endpoint,
        frame.source,
        asked or connect.target,
        owner=endpoint.user if is_stranger else "",
        is_resumed=connect.resume,
        is_question=asked is not None,
    )


def _separate(acceptors: list[Acceptor]) -> list[Acceptor]:
    """Return all but the inline exit."""
    return [one for one in acceptors if not is_inline_exit(one[0].identity)]


def _acceptors(listeners: list[Listener]) -> list[Acceptor]:
    return [(listener.attachment, listener) for listener in listeners]


def _with_payload(frame: Frame, payload: bytes) -> Frame:
    kind, source, destination, sequence = frame.type, frame.source, frame.destination, frame.sequence
    return frame_of(Packet(kind, source, destination, sequence, payload, frame.attempt, frame.version))


def _lowered(options: Options, packet_bytes_max: int) -> Options:
    """Return the options with their largest packet lowered to this size; 0 lowers nothing."""
    announced = options.packet_bytes_max
    if not packet_bytes_max or (announced is not None and announced <= packet_bytes_max):
        return options
    return msgspec.structs.replace(options, packet_bytes_max=packet_bytes_max)
