"""The relay's switch, without I/O: request bodies and link packets in, responses and link packets out (section 7, 9).

The host (`SwitchHost`) passes in each request and batch. It then drains `poll_response`, `poll_stream_ready`,
`poll_link_ready` and `poll_link_end` until each returns None, and calls `handle_timeout` by the time that
`next_timeout` returns. The host authenticates: the switch trusts the user that the host names.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

from tunnel.exchange.served.served import Reply, ServedLane
from tunnel.traces.record import TraceSink
from tunnel.wire import (
    HEADER_SIZE,
    HTTP_STATUS,
    USER_BYTES_MAX,
    Attach,
    Buffer,
    EnvelopeError,
    Exchange,
    Frame,
    Message,
    Option,
    Options,
    Status,
    StatusCode,
    batch_end,
    decode_envelope,
    encode_envelope,
    is_inline_exit,
    mask_of,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import Authorise, MayListen, PacketFilter, Publisher, RatesOf, Rules, SeparateExits
from tunnel_servlet.switch.forwarding import BodyRest, Forwarder, part_packets
from tunnel_servlet.switch.invariants import check
from tunnel_servlet.switch.lifecycle import UNKNOWN, Lifecycle
from tunnel_servlet.switch.mailboxes.links import ServedLink
from tunnel_servlet.switch.mailboxes.rate_turns import no_rates
from tunnel_servlet.switch.model import ANY_TOKEN, Attention, Credential, RouteState, ServedAttachment
from tunnel_servlet.switch.operating.operator import Operator
from tunnel_servlet.switch.own_packets import option_frame
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.responses import BAD_BODY, RelayResponse, confirmed_lane, unsent
from tunnel_servlet.switch.review import Ended, Review
from tunnel_servlet.switch.routes.openings import Openings
from tunnel_servlet.switch.routes.routes import RouteTable
from tunnel_servlet.switch.routes.services import Services
from tunnel_servlet.switch.stats import RateWait, SwitchStats
from tunnel_servlet.switch.streaming import Streaming
from tunnel_servlet.switch.witness import NOWHERE, Origin, Witness

__all__ = ["Switch"]

_BUSY_RETRY_MS = 1000


class Switch:
    """The relay's whole state: attachments, routes, mailboxes. No input from a peer makes it raise.

    One thing because each method is an entrance of the host, or the exit by which all parts answer requests; the work
    is done in the parts that it connects.
    """

    def __init__(
        self,
        config: SwitchConfig,
        random: Random,
        authorise: Authorise,
        *,
        answer: Authorise | None = None,
        may_listen: MayListen = lambda user, name: True,
        may_share: MayListen = lambda user, name: True,
        publisher: Publisher | None = None,
        rates_of: RatesOf = no_rates,
        separate_exits: SeparateExits | None = None,
        packet_filter: PacketFilter | None = None,
        trace: TraceSink | None = None,
        started_us: int | None = None,
        witness: Witness | None = None,
        has_short_way: bool = True,
    ) -> None:
        self.config = config
        self.epoch = random.getrandbits(64)  # 6.3
        self._context = SwitchContext(config, trace, started_us, witness)
        self._context.pacing.limit_by(rates_of)
        self._attention = Attention()
        self._registry = Registry(self._context, self._attention, separate_exits)
        self._routes = RouteTable(self._context)
        self._services = Services(config, may_listen, self._routes.waiting.look_at, may_share, publisher)
        shared_first = (self._context, self._registry, self._routes)
        self._openings = Openings(self.epoch, *shared_first, self._services, authorise, answer or authorise)
        self._forwarder = Forwarder(
            self._context, self._routes, self._openings, self._services, packet_filter, has_short_way=has_short_way
        )
        self._streaming = Streaming(self._context.deadlines, self._attention, self.send)
        shared = (self._context, self._registry, self._routes, self._openings, self._services, self._streaming)
        self._lifecycle = Lifecycle(self.epoch, *shared, self)
        self._review = Review(self._context, self._registry, self._routes, self._services, self._lifecycle)
        self.operator = Operator(self.epoch, self._context, self._registry, self._routes, self._lifecycle)
        self.responses: deque[RelayResponse] = deque()
        self._masks: dict[int, int] = {}  # the masks of requests that wait for their answers, by handle
        self._held: dict[int, ServedAttachment] = {}  # the attachment of each held pull, by handle
        self._links: dict[int, tuple[ServedAttachment, ServedLink]] = {}
        self._own_links = 0  # of endpoints in the relay's process
        self.links_ready: deque[int] = deque()
        self.streams_ready = self._streaming.ready
        self.links_ended: deque[int] = deque()

    # --- state

    def stats(self) -> SwitchStats:
        """Return the present state and a copy of the counters."""
        counts, budget = self._routes.counts, self._context.budget
        return SwitchStats(
            users=len(self._registry.accounts),
            attachments=len(self._registry.by_id),
            exits=len(self._registry.exits),
            links=len(self._links) - self._own_links,
            parked_pulls=len(self._held),
            streams=len(self._streaming),
            routes=len(self._routes),
            routes_waiting=counts[RouteState.WAITING],
            routes_pending=counts[RouteState.HANDED],
            routes_parked=counts[RouteState.PARKED],
            routes_bound=counts[RouteState.BOUND] - self._routes.aborted,
            routes_aborted=self._routes.aborted,
            listeners=len(self._services),
            bytes_held=budget.held,
            bytes_reserved=budget.reserved,
            bytes_outstanding=budget.outstanding,
            timers=len(self._context.deadlines),
            counters=self._context.counters.copy(),
        )

    def rate_waits(self, now: int) -> list[RateWait]:
        """Return how long each user has waited for each rate."""
        return self._context.pacing.waits(now)

    def check_invariants(self) -> None:
        """Raise InvariantError if the state contradicts itself. For tests and the simulator: it recounts everything."""
        check(self._context, self._attention, self._registry, self._routes)

    # --- time

    def next_timeout(self) -> int | None:
        """Return the time by which `handle_timeout` must be called, or None."""
        return self._context.deadlines.next_timeout()

    def handle_timeout(self, now: int) -> None:
        """Fire the timers that are due. Calling it early has no effect, and calling it late loses nothing."""
        for deadline in self._context.deadlines.pop_expired(now):
            deadline.fire(now)
        self._serve_awake(now)

    # --- requests

    def request(
        self,
        handle: int,
        user: str,
        body: Buffer,
        now: int,
        *,
        is_exit: bool = False,
        credential: Credential = ANY_TOKEN,
        identity: bytes | None = None,
        origin: Origin = NOWHERE,
        in_parts: bool = False,
    ) -> BodyRest | None:
        """Handle a complete HTTP request body of an authenticated user, which came from `origin`.

        `handle` identifies the HTTP exchange until its response. `is_exit`: if this request attaches an endpoint, the
        endpoint is an exit, which dials targets for every user, and its token is `credential`. `identity`: the
        attachment id of an endpoint in this process, which is not derived from its secret (6.1).

        With `in_parts`, handle only the first part of a large body, and return the rest: the response comes when
        `go_on` has handled that. Until then, hand in no other request of this user.
        """
        if len(user.encode()) > USER_BYTES_MAX:
            raise ValueError(f"a user name has at most {USER_BYTES_MAX} bytes")
        self._context.counters.requests += 1
        if len(body) > self.config.body_bytes_max:
            self._respond(
                handle, Status(StatusCode.TOO_LARGE, text=f"the body is larger than {self.config.body_bytes_max} bytes")
            )
            return None
        message = decode_envelope(body)
        if not isinstance(message, EnvelopeError) and (mask := mask_of(body)):
            self._masks[handle] = mask
        answer: Message | BodyRest | None
        if isinstance(message, Exchange):
            answer = self._exchange(handle, user, message, now, origin, in_parts=in_parts)
        elif isinstance(message, Attach):
            answer = self._lifecycle.attach(
                user, message, now, is_exit=is_exit, credential=credential, identity=identity, origin=origin
            )
        elif isinstance(message, EnvelopeError):
            answer = Status(BAD_BODY[message], text=message.value)
        else:
            answer = Status(StatusCode.MALFORMED, text="not a request: send EXCHANGE or ATTACH")
        rest = answer if isinstance(answer, BodyRest) else None
        if answer is not None and not isinstance(answer, BodyRest):
            self._respond(handle, answer)
        self._serve_awake(now)
        return rest

    def go_on(self, rest: BodyRest, now: int) -> bool:
        """Handle the next packets of a body. Return whether there are more: if not, the request has its response."""
        attachment = rest.attachment
        if attachment.is_gone:
            self._respond(rest.handle, UNKNOWN)
            return False
        self._forwarder.receive(attachment, rest.take(), now)
        if not rest.frames:
            if attachment.has_lane(rest.lane):
                self._answer(attachment, rest.lane, rest.handle, now)
            else:  # the endpoint has attached again meanwhile
                self._respond(rest.handle, Status(StatusCode.STALE))
        self._serve_awake(now)
        return bool(rest.frames)

    def on_gone(self, handle: int, now: int) -> None:
        """Forget a request whose HTTP connection was lost, if it is held or its streamed answer is open."""
        self._masks.pop(handle, None)
        attachment = self._held.pop(handle, None)
        if attachment is not None:
            attachment.held_lanes.pop(handle).on_gone(handle)
            return
        attachment = self._streaming.on_gone(handle)
        if attachment is not None:
            self._attention.wake(attachment)
            self._serve_awake(now)

    def poll_response(self) -> RelayResponse | None:
        """Return the next response to send, or None."""
        return self.responses.popleft() if self.responses else None

    def poll_stream_ready(self) -> int | None:
        """Return the handle of a streamed answer for which something waits, or None.

        The caller must call `poll_stream` until it returns None or the connection can take no more, and again when it
        can take more.
        """
        return self._streaming.poll_ready()

    def poll_stream(self, handle: int, now: int) -> RelayResponse | None:
        """Return the next envelope of a streamed answer; None if nothing is to be sent now. The switch keeps its
        packets until they are confirmed."""
        reply = self._streaming.poll(handle, now)
        if reply is None:
            return None
        self._serve_awake(now)
        return self._response(handle, reply.answer, goes_on=self._goes_on(reply))

    def note_stopped(self, now: int) -> None:
        """Let the witness know of all open connections, because the relay stops. The switch is not used any more."""
        for attachment in self._registry.by_id.values():
            self._routes.note_stopped(attachment, now)

    def drain(self) -> None:
        """Refuse each new CONNECT as *shutting down* and each new attachment as *busy* from now on, and ignore resumes
        of unknown routes (9.9)."""
        self._openings.is_draining = True

    def tell_draining(self, clock: Callable[[], int]) -> Iterator[None]:
        """Tell each attachment that the relay drains, one in each step. The host runs the iterator to its end; between
        two steps it may call any other method."""
        for attachment in list(self._registry.by_id.values()):
            if not attachment.is_gone and not is_inline_exit(attachment.identity):
                attachment.mailbox.post(("draining", 0), option_frame(Option(0, Options(draining=True))))
                self._serve_awake(clock())
            yield

    def review(self, rules: Rules, clock: Callable[[], int]) -> Iterator[Ended | None]:
        """End what `rules` no longer allow, and say why (9.7), in small steps. Each yields what it has ended, or None.

        `authorise`, `may_listen` and `may_share` must decide by the same rules from now on. The host runs the iterator
        to its end, or drops it when the rules change again; between two steps it may call any other method.
        """
        for ended in self._review.steps(rules, clock):
            self._serve_awake(clock())
            yield from ended or (None,)

    # --- links

    def link_opened(
        self,
        link: int,
        user: str,
        identity: bytes,
        epoch: int,
        generation: int,
        now: int,
        origin: Origin = NOWHERE,
        *,
        shares: bool = False,
    ) -> bool:
        """Register a new link of an attachment. `shares`: it shares the load with the others that do (8.7).

        Return False if the switch does not know the attachment, epoch or generation, or if there are too many links or
        attachments; the caller must then close the link.
        """
        attachment = self._registry.find(identity, user)
        if attachment is None or epoch != self.epoch or generation != attachment.generation or link in self._links:
            return False
        config = self.config
        links_max = config.shared_links_per_attachment_max if shares else config.links_per_attachment_max
        if len(attachment.links) >= links_max:
            return False
        attachment.on_heard(now)
        attachment.origin = origin
        if not attachment.is_heard and not self._lifecycle.on_first_heard(attachment, now):
            return False
        counters = self._context.counters
        is_own = attachment.mailbox.traffic is counters.in_process
        self._own_links += is_own
        counters.links_opened += not is_own
        traffic = None if is_own else counters.by_links
        served = attachment.links[link] = ServedLink(link, origin, traffic, shares=shares)
        self._links[link] = attachment, served
        self._attention.wake(attachment)
        self._serve_awake(now)
        return True

    def link_packets(self, link: int, frames: list[Frame], now: int) -> None:
        """Handle the packets of one whole batch from a link."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            attachment.on_heard(now)
            if served.is_distrusted:
                self._trust(attachment, served)
            attachment.origin = served.origin
            if len(attachment.links) > 1:
                attachment.prefer(served, now)
            self._forwarder.receive(attachment, frames, now, served.traffic)
            self._serve_awake(now)

    def link_receipted(self, link: int, batches: int, now: int) -> None:
        """Handle receipts: the oldest `batches` batches from `poll_link` without a receipt have arrived (8.2)."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            attachment.mailbox.release_taken(served.take_receipted(batches, now))
            attachment.on_heard(now)
            served.is_distrusted = False
            if attachment.mailbox.waiting:  # the link, which was perhaps full, may get waiting packets again
                self._attention.wake(attachment)
            if served.line is not None and len(attachment.links) > 1:
                attachment.distrust_links(now)
            if self._attention.awake or self._context.pacing.asked:
                self._serve_awake(now)

    def link_left(self, link: int, now: int) -> None:
        """Send no further packets on a link that its endpoint will close soon, if it shares the load: others carry
        (8.7)."""
        found = self._links.get(link)
        if found is not None and found[1].line is not None and not found[1].is_left:
            found[1].is_left = True
            self._attention.wake(found[0])  # what was offered to this link is offered to another one
            self._serve_awake(now)

    def poll_link_ready(self) -> int | None:
        """Return a link for which something waits, or None.

        The caller must call `poll_link` until it returns nothing or the link can take no more, and again when the link
        can take more.
        """
        return self.links_ready.popleft() if self.links_ready else None

    def poll_link(self, link: int, limit_bytes: int, now: int) -> list[Frame]:
        """Return the packets of the link's next batch. The switch keeps them until they are receipted.

        A link that shares the load gets one batch each time that it was signalled: the next one may be for another.
        """
        found = self._links.get(link)
        if found is None:
            return []
        attachment, served = found
        if served.line is not None and not served.is_signalled:
            return []
        served.is_signalled = False
        mailbox = attachment.mailbox
        if served.is_distrusted or not (mailbox.parcel or mailbox.waiting):
            return []
        room = served.room(self.config.unreceipted_bytes_max, self.config.unreceipted_packets_max)
        if not room:
            return []
        if served.line is not None:
            limit_bytes = served.batch_bytes(limit_bytes)
        frames = mailbox.take(limit_bytes, room, served.traffic)
        served.on_sent(frames, now)
        if served.line is not None and mailbox.waiting:
            self._attention.wake(attachment)
        if self._attention.awake or self._context.pacing.asked:
            self._serve_awake(now)
        return frames

    def link_is_full(self, link: int, now: int) -> None:
        """Offer what waits to another link that shares the load: this one was signalled, and can take no more now."""
        found = self._links.get(link)
        if found is not None and found[1].line is not None and found[0].mailbox.waiting:
            self._attention.wake(found[0])
            self._serve_awake(now)

    def link_closed(self, link: int, now: int) -> None:
        """Handle the end of a link: its packets without a receipt leave by another way."""
        found = self._links.pop(link, None)
        if found is not None:
            attachment, served = found
            del attachment.links[link]
            self._own_links -= served.traffic is None
            attachment.last_seen_us = now
            attachment.mailbox.put_back(served.take_back())
            self._attention.wake(attachment)
            self._serve_awake(now)

    def poll_link_end(self) -> int | None:
        """Return a link that the host must close, or None. Its attachment or generation has ended, and the switch has
        forgotten it."""
        return self.links_ended.popleft() if self.links_ended else None

    # --- LifecycleHost

    def send(self, reply: Reply | None) -> bool:
        """Send a reply to the request that it answers. Return False, and do nothing, if it is None."""
        if reply is None:
            return False
        attachment = self._held.pop(reply.handle, None)
        if attachment is not None:
            del attachment.held_lanes[reply.handle]
        goes_on = self._goes_on(reply)
        if reply.is_cut:
            self._masks.pop(reply.handle, None)
            self.responses.append(RelayResponse(reply.handle, 200, []))
        else:
            self.responses.append(self._response(reply.handle, reply.answer, reply.previous, goes_on=goes_on))
        return True

    def end_links(self, attachment: ServedAttachment) -> None:
        """Close the attachment's links, and put their packets without a receipt back at the head of the mailbox."""
        for link in reversed(attachment.links.values()):
            attachment.mailbox.put_back(link.take_back())
            del self._links[link.link]
            self._own_links -= link.traffic is None
            self.links_ended.append(link.link)
        attachment.links.clear()

    def refuse_held(self, attachment: ServedAttachment) -> None:
        """Answer the attachment's held pulls, and end its streams, with STATUS(unknown)."""
        for handle in self._streaming.detach(attachment):
            self._respond(handle, UNKNOWN)
        for handle, lane in attachment.held_lanes.items():
            lane.on_gone(handle)
            del self._held[handle]
            self._respond(handle, UNKNOWN)
        attachment.held_lanes.clear()

    def end_holds(self, attachment: ServedAttachment, now: int) -> None:
        """Answer the pulls whose hold is over."""
        for lane in list(attachment.held_lanes.values()):
            self.send(lane.expire(now))
        ends_us = attachment.hold_ends_us()
        if ends_us is not None:
            self._context.deadlines.set(attachment.hold, ends_us)

    # --- inside

    def _exchange(
        self, handle: int, user: str, exchange: Exchange, now: int, origin: Origin, *, in_parts: bool
    ) -> Status | BodyRest | None:
        """Handle EXCHANGE (7.3, 7.4). Return the refusal, the rest of the body, or None if the request is answered or
        held."""
        attachment = self._registry.find(exchange.attachment_id, user)
        generation = attachment.generation if attachment is not None else 0
        if attachment is None or exchange.epoch != self.epoch or exchange.generation > generation:
            return UNKNOWN
        if exchange.generation < generation:
            return Status(StatusCode.STALE)
        if exchange.lane >= self.config.lanes_max:
            return Status(StatusCode.MALFORMED, text=f"lanes are numbered from 0 to {self.config.lanes_max - 1}")
        lane, outbox = attachment.lane(exchange.lane)
        if not lane.has_sent(exchange.serial_received):
            # Not MALFORMED, because the endpoint may be right: a late copy of ATTACH can revive an attachment that the
            # relay had forgotten. UNKNOWN makes the endpoint attach again with a new generation.
            return Status(StatusCode.UNKNOWN, text=unsent(lane, exchange.serial_received))
        if exchange.piece and not attachment.mailbox.budget.admits(len(exchange.data)):
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, "the mailbox has no room for a piece of a packet")
        if not exchange.piece and self._is_too_full(exchange.data):
            self._context.counters.bodies_too_full += 1
            text = f"the body holds more than {self.config.packets_per_body_max} packets"
            return Status(StatusCode.TOO_LARGE, text=text)
        confirmed = confirmed_lane(attachment, exchange)
        if isinstance(confirmed, Status):
            return confirmed
        attachment.on_heard(now)
        attachment.origin = origin
        if not attachment.is_heard and not self._lifecycle.on_first_heard(attachment, now):
            return UNKNOWN
        if confirmed is not None and exchange.confirms is not None:
            self._streaming.handle_confirmation(attachment, confirmed, exchange.confirms[1], now)
        if exchange.pull and attachment.links:
            attachment.distrust_links(now, pulls=True)
        arrival = lane.receive(exchange, handle, now)
        attachment.streams.refresh()
        if attachment.mailbox.waiting:
            self._attention.wake(attachment)  # the window of a stream may have opened, or a stream may be over
        for reply in arrival.replies:
            self.send(reply)
        if arrival.discarded is not None:
            found = arrival.discarded
            self._context.counters.packets_damaged += found.bad_checksum + found.bad_size + found.truncated
        if arrival.applies:
            outbox.count_incoming(lane.incoming_bytes)
            frames = arrival.frames
            if in_parts and len(frames) > part_packets(frames):
                rest = BodyRest(attachment, lane, handle, frames)
                self._forwarder.receive(attachment, rest.take(), now)
                return rest
            self._forwarder.receive(attachment, frames, now)
            self._answer(attachment, lane, handle, now)
        return None

    def _is_too_full(self, packets: Buffer) -> bool:
        """Whether there are more packets than one body may hold. Parsing them all would cost other users time."""
        packets_max = self.config.packets_per_body_max
        return len(packets) > packets_max * HEADER_SIZE and batch_end(packets, 0, packets_max) < len(packets)

    def _answer(self, attachment: ServedAttachment, lane: ServedLane, handle: int, now: int) -> None:
        """Answer the request with the packets that wait; hold a pull for which nothing waits."""
        reply = lane.answer(now)
        if reply is not None and reply.answer.goes_on:
            self._context.counters.streams_opened += 1
            self._streaming.on_opened(handle, attachment, lane, now)
        if self.send(reply):
            return
        attachment.held_lanes[handle] = lane
        self._held[handle] = attachment
        # The timer is not cleared when a pull is answered; it checks the held pulls when it fires.
        due_us = attachment.hold.due_us
        if due_us is None or lane.parked_until_us < due_us:
            self._context.deadlines.set(attachment.hold, lane.parked_until_us)

    def _trust(self, attachment: ServedAttachment, served: ServedLink) -> None:
        """Note that a distrusted link is alive, so that it may get waiting packets again."""
        served.is_distrusted = False
        self._attention.wake(attachment)

    def _serve_awake(self, now: int) -> None:
        """Let waiting packets leave: on the attachment's stream, else on held pulls, else on a link (7.4, 7.20, 8)."""
        if self._routes.waiting.changed:
            self._openings.serve_waiting(now)
        awake, pacing = self._attention.awake, self._context.pacing
        while awake or pacing.asked:
            if pacing.asked:
                pacing.serve(now)
                continue
            attachment = awake.popleft()
            attachment.is_awake = False
            mailbox, held = attachment.mailbox, attachment.held_lanes
            if attachment.is_gone or not (mailbox.parcel or mailbox.waiting):
                continue
            if attachment.streams.carrier is not None and self._streaming.signal(attachment):
                continue
            waits = True
            while held and waits:
                self.send(next(iter(held.values())).wake(now))
                waits = mailbox.waiting
            link = attachment.usable_link() if attachment.links and waits else None
            if link is not None and not link.is_signalled:
                link.is_signalled = True
                self.links_ready.append(link.link)

    def _respond(self, handle: int, message: Message, previous: int = 0) -> None:
        self.responses.append(self._response(handle, message, previous))

    def _response(self, handle: int, message: Message, previous: int = 0, *, goes_on: bool = False) -> RelayResponse:
        status = HTTP_STATUS[message.code] if isinstance(message, Status) else 200
        if isinstance(message, Status):
            self._context.counters.refuse_request(message.code)
        else:
            self._context.counters.answers += 1
        # The answer to a masked repeat is masked, too: a filter may have rejected the first, unmasked answer (7.9).
        mask = self._masks.get(handle) if goes_on else self._masks.pop(handle, None)
        return RelayResponse(handle, status, encode_envelope(message, mask=mask), previous, goes_on)

    def _goes_on(self, reply: Reply) -> bool:
        """Whether more of the same body follows. If not, forget its stream."""
        if not reply.answer.goes_on:
            self._streaming.forget(reply.handle)
        return reply.answer.goes_on
