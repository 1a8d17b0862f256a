"""The relay's switch, without I/O: request bodies and link packets in, responses and link packets out (section 7, 9).

The host (`SwitchHost`) passes in each request and batch. It then drains `poll_response`, `poll_stream_ready`,
`poll_link_ready` and `poll_link_end` until each returns None, and calls `handle_timeout` by the time that
`next_timeout` returns. The host authenticates: the switch trusts the user that the host names.
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random

import msgspec

from tunnel.exchange.served import Reply, ServedLane
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
    Status,
    StatusCode,
    batch_end,
    decode_envelope,
    encode_envelope,
    mask_of,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import Authorise, MayListen, PacketFilter, Publisher, RatesOf, Rules, SeparateExits
from tunnel_servlet.switch.forwarding import Forwarder
from tunnel_servlet.switch.invariants import check
from tunnel_servlet.switch.lifecycle import UNKNOWN, Lifecycle
from tunnel_servlet.switch.links import ServedLink
from tunnel_servlet.switch.model import Attention, RouteState, ServedAttachment
from tunnel_servlet.switch.openings import Openings
from tunnel_servlet.switch.pacing import no_rates
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.review import Ended, Review
from tunnel_servlet.switch.routes import RouteTable
from tunnel_servlet.switch.services import Services
from tunnel_servlet.switch.stats import RateWait, SwitchStats
from tunnel_servlet.switch.streaming import Streaming

__all__ = ["Response", "Switch"]

_BUSY_RETRY_MS = 1000

# The status for each error of a body. CORRUPT means that repeating the body may help (7.10).
_BAD_BODY = {
    EnvelopeError.NOT_OURS: StatusCode.CORRUPT,  # the magic itself may be what was damaged
    EnvelopeError.TRUNCATED: StatusCode.CORRUPT,
    EnvelopeError.CORRUPT: StatusCode.CORRUPT,
    EnvelopeError.VERSION: StatusCode.MALFORMED,
    EnvelopeError.MALFORMED: StatusCode.MALFORMED,
}


def _unsent(lane: ServedLane, serial: int) -> str:
    text = f"no answer of lane {lane.lane} had serial {serial}, the newest had {lane.serial}"
    return f"{text}: a new generation starts its serials at 1"


class Response(msgspec.Struct):
    """The answer to one HTTP request, or the next envelope of a streamed answer. An empty body ends a stream."""

    handle: int
    status: int  # of HTTP
    body: list[Buffer]
    previous: int = 0  # the handle of the previous answer of the same lane, which need not arrive any more; 0: none
    goes_on: bool = False  # more of the same body follows


class Switch:
    """The relay's whole state: attachments, routes, mailboxes. No input from a peer makes it raise."""

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
    ) -> None:
        self.config = config
        self.epoch = random.getrandbits(64)  # 6.3
        self._context = SwitchContext(config, trace, started_us)
        self._context.pacing.limit_by(rates_of)
        self._attention = Attention()
        self._registry = Registry(self._context, self._attention, separate_exits)
        self._routes = RouteTable(self._context)
        self._services = Services(config, may_listen, self._routes.waiting.look_at, may_share, publisher)
        shared_first = (self._context, self._registry, self._routes)
        self._openings = Openings(self.epoch, *shared_first, self._services, authorise, answer or authorise)
        self._forwarder = Forwarder(self._context, self._routes, self._openings, self._services, packet_filter)
        self._streaming = Streaming(self._context.deadlines, self._attention, self.send)
        shared = (self._context, self._registry, self._routes, self._openings, self._services, self._streaming)
        self._lifecycle = Lifecycle(self.epoch, *shared, self)
        self._review = Review(self._context, self._registry, self._routes, self._services, self._lifecycle)
        self._responses: deque[Response] = deque()
        self._masks: dict[int, int] = {}  # the masks of requests that wait for their answers, by handle
        self._held: dict[int, ServedAttachment] = {}  # the attachment of each held pull, by handle
        self._links: dict[int, tuple[ServedAttachment, ServedLink]] = {}
        self._links_ready: deque[int] = deque()
        self._links_ended: deque[int] = deque()

    # --- state

    def stats(self) -> SwitchStats:
        """Return the present state and a copy of the counters."""
        counts, budget = self._routes.counts, self._context.budget
        return SwitchStats(
            users=len(self._registry.accounts),
            attachments=len(self._registry.by_id),
            exits=len(self._registry.exits),
            links=len(self._links),
            parked_pulls=len(self._held),
            streams=len(self._streaming),
            routes=len(self._routes),
            routes_waiting=counts[RouteState.WAITING],
            routes_pending=counts[RouteState.HANDED],
            routes_parked=counts[RouteState.PARKED],
            routes_bound=counts[RouteState.BOUND],
            listeners=len(self._services),
            bytes_held=budget.held,
            bytes_reserved=budget.reserved,
            bytes_outstanding=budget.outstanding,
            timers=len(self._context.deadlines),
            counters=msgspec.structs.replace(self._context.counters),
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
        for deadline in self._context.deadlines.expired(now):
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
        identity: bytes | None = None,
    ) -> None:
        """Handle a complete HTTP request body of an authenticated user.

        `handle` identifies the HTTP exchange until its response. `is_exit`: if this request attaches an endpoint, the
        endpoint is an exit, which dials targets for every user. `identity`: the attachment id of an endpoint in this
        process, which is not derived from its secret (6.1).
        """
        if len(user.encode()) > USER_BYTES_MAX:
            raise ValueError(f"a user name has at most {USER_BYTES_MAX} bytes")
        self._context.counters.requests += 1
        if len(body) > self.config.body_bytes_max:
            self._respond(
                handle, Status(StatusCode.TOO_LARGE, text=f"the body is larger than {self.config.body_bytes_max} bytes")
            )
            return
        message = decode_envelope(body)
        if not isinstance(message, EnvelopeError) and (mask := mask_of(body)):
            self._masks[handle] = mask
        answer: Message | None
        if isinstance(message, Exchange):
            answer = self._exchange(handle, user, message, now)
        elif isinstance(message, Attach):
            answer = self._lifecycle.attach(user, message, now, is_exit=is_exit, identity=identity)
        elif isinstance(message, EnvelopeError):
            answer = Status(_BAD_BODY[message], text=message.value)
        else:
            answer = Status(StatusCode.MALFORMED, text="not a request: send EXCHANGE or ATTACH")
        if answer is not None:
            self._respond(handle, answer)
        self._serve_awake(now)

    def gone(self, handle: int, now: int) -> None:
        """Forget a request whose HTTP connection was lost, if it is held or its streamed answer is open."""
        self._masks.pop(handle, None)
        attachment = self._held.pop(handle, None)
        if attachment is not None:
            attachment.parked.pop(handle).gone(handle)
            return
        attachment = self._streaming.gone(handle)
        if attachment is not None:
            self._attention.wake(attachment)
            self._serve_awake(now)

    def poll_response(self) -> Response | None:
        """Return the next response to send, or None."""
        return self._responses.popleft() if self._responses else None

    def poll_stream_ready(self) -> int | None:
        """Return the handle of a streamed answer for which something waits, or None.

        The caller must call `poll_stream` until it returns None or the connection can take no more, and again when it
        can take more.
        """
        return self._streaming.poll_ready()

    def poll_stream(self, handle: int, now: int) -> Response | None:
        """Return the next envelope of a streamed answer; None if nothing is to be sent now. The switch keeps its
        packets until they are confirmed."""
        reply = self._streaming.poll(handle, now)
        if reply is None:
            return None
        self._serve_awake(now)
        return self._response(handle, reply.answer, goes_on=self._goes_on(reply))

    def drain(self) -> None:
        """Refuse each new CONNECT as *shutting down* from now on, and ignore resumes of unknown routes."""
        self._openings.is_draining = True

    def review(self, rules: Rules, clock: Callable[[], int]) -> Iterator[Ended | None]:
        """End what `rules` no longer allow, and say why (9.7), in small steps. Each yields what it has ended, or None.

        `authorise`, `may_listen` and `may_share` must decide by the same rules from now on. The host runs the iterator
        to its end, or drops it when the rules change again; between two steps it may call any other method.
        """
        for ended in self._review.steps(rules, clock):
            self._serve_awake(clock())
            yield from ended or (None,)

    # --- links

    def link_opened(self, link: int, user: str, identity: bytes, epoch: int, generation: int, now: int) -> bool:
        """Register a new link of an attachment. Return False if the switch does not know the attachment, epoch or
        generation, or if there are too many links or attachments; the caller must then close the link."""
        attachment = self._registry.find(identity, user)
        if attachment is None or epoch != self.epoch or generation != attachment.generation or link in self._links:
            return False
        if len(attachment.links) >= self.config.links_per_attachment_max:
            return False
        attachment.heard(now)
        if not attachment.is_heard and not self._lifecycle.heard(attachment, now):
            return False
        self._context.counters.links_opened += 1
        served = attachment.links[link] = ServedLink(link)
        self._links[link] = attachment, served
        self._attention.wake(attachment)
        self._serve_awake(now)
        return True

    def link_packets(self, link: int, frames: list[Frame], now: int) -> None:
        """Handle the packets of one whole batch from a link."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            self._heard(attachment, served, now)
            if len(attachment.links) > 1:
                attachment.prefer(served, now)
            self._forwarder.receive(attachment, frames, now)
            self._serve_awake(now)

    def link_receipted(self, link: int, batches: int, now: int) -> None:
        """Handle receipts: the oldest `batches` batches from `poll_link` without a receipt have arrived (8.2)."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            attachment.mailbox.confirmed(served.receipted(batches))
            self._heard(attachment, served, now)
            self._serve_awake(now)

    def poll_link_ready(self) -> int | None:
        """Return a link for which something waits, or None.

        The caller must call `poll_link` until it returns nothing or the link can take no more, and again when the link
        can take more.
        """
        return self._links_ready.popleft() if self._links_ready else None

    def poll_link(self, link: int, limit_bytes: int, now: int) -> list[Frame]:
        """Return the packets of the link's next batch. The switch keeps them until they are receipted."""
        found = self._links.get(link)
        if found is None:
            return []
        attachment, served = found
        served.is_signalled = False
        room = served.room(self.config.unreceipted_bytes_max, self.config.unreceipted_packets_max)
        if served.is_distrusted or not attachment.mailbox.waiting or not room:
            return []
        frames = attachment.mailbox.take(limit_bytes, room)
        served.sent(frames, now)
        self._serve_awake(now)
        return frames

    def link_closed(self, link: int, now: int) -> None:
        """Handle the end of a link: its packets without a receipt leave by another way."""
        found = self._links.pop(link, None)
        if found is not None:
            attachment, served = found
            del attachment.links[link]
            attachment.last_seen_us = now
            attachment.mailbox.put_back(served.take_back())
            self._attention.wake(attachment)
            self._serve_awake(now)

    def poll_link_end(self) -> int | None:
        """Return a link that the host must close, or None. Its attachment or generation has ended, and the switch has
        forgotten it."""
        return self._links_ended.popleft() if self._links_ended else None

    # --- LifecycleHost

    def send(self, reply: Reply | None) -> bool:
        """Send a reply to the request that it answers. Return False, and do nothing, if it is None."""
        if reply is None:
            return False
        attachment = self._held.pop(reply.handle, None)
        if attachment is not None:
            del attachment.parked[reply.handle]
        goes_on = self._goes_on(reply)
        if reply.is_cut:
            self._masks.pop(reply.handle, None)
            self._responses.append(Response(reply.handle, 200, []))
        else:
            self._responses.append(self._response(reply.handle, reply.answer, reply.previous, goes_on=goes_on))
        return True

    def end_links(self, attachment: ServedAttachment) -> None:
        """Close the attachment's links, and put their packets without a receipt back at the head of the mailbox."""
        for link in reversed(attachment.links.values()):
            attachment.mailbox.put_back(link.take_back())
            del self._links[link.link]
            self._links_ended.append(link.link)
        attachment.links.clear()

    def refuse_held(self, attachment: ServedAttachment) -> None:
        """Answer the attachment's held pulls, and end its streams, with STATUS(unknown)."""
        for handle in self._streaming.detach(attachment):
            self._respond(handle, UNKNOWN)
        for handle, lane in attachment.parked.items():
            lane.gone(handle)
            del self._held[handle]
            self._respond(handle, UNKNOWN)
        attachment.parked.clear()

    def end_holds(self, attachment: ServedAttachment, now: int) -> None:
        """Answer the pulls whose hold is over."""
        for lane in list(attachment.parked.values()):
            self.send(lane.expire(now))
        ends_us = attachment.hold_ends_us()
        if ends_us is not None:
            self._context.deadlines.set(attachment.hold, ends_us)

    # --- inside

    def _exchange(self, handle: int, user: str, exchange: Exchange, now: int) -> Status | None:
        """Handle EXCHANGE (7.3, 7.4). Return the refusal, or None if the request is answered or held."""
        attachment = self._registry.find(exchange.attachment_id, user)
        if attachment is None or exchange.epoch != self.epoch or exchange.generation > attachment.generation:
            return UNKNOWN
        if exchange.generation < attachment.generation:
            return Status(StatusCode.STALE)
        if exchange.lane >= self.config.lanes_max:
            return Status(StatusCode.MALFORMED, text=f"lanes are numbered from 0 to {self.config.lanes_max - 1}")
        lane, outbox = attachment.lane(exchange.lane)
        if not lane.has_sent(exchange.serial_received):
            # Not MALFORMED, because the endpoint may be right: a late copy of ATTACH can revive an attachment that the
            # relay had forgotten. UNKNOWN makes the endpoint attach again with a new generation.
            return Status(StatusCode.UNKNOWN, text=_unsent(lane, exchange.serial_received))
        if exchange.piece and not attachment.mailbox.budget.admits(len(exchange.data)):
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, "the mailbox has no room for a piece of a packet")
        if not exchange.piece and self._is_too_full(exchange.data):
            self._context.counters.bodies_too_full += 1
            text = f"the body holds more than {self.config.packets_per_body_max} packets"
            return Status(StatusCode.TOO_LARGE, text=text)
        confirmed = self._confirmed_lane(attachment, exchange)
        if isinstance(confirmed, Status):
            return confirmed
        attachment.heard(now)
        if not attachment.is_heard and not self._lifecycle.heard(attachment, now):
            return UNKNOWN
        if confirmed is not None and exchange.confirms is not None:
            self._streaming.confirmed(attachment, confirmed, exchange.confirms[1], now)
        if exchange.pull and attachment.links:
            attachment.distrust_links(now)
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
            self._forwarder.receive(attachment, arrival.frames, now)
            self._answer(attachment, lane, handle, now)
        return None

    def _confirmed_lane(self, attachment: ServedAttachment, exchange: Exchange) -> ServedLane | Status | None:
        """Return the lane whose stream the request confirms, None if it confirms none, or the refusal."""
        if exchange.confirms is None:
            return None
        number, serial = exchange.confirms
        found = attachment.lanes.get(number)
        if found is None or not found[0].has_sent(serial):
            # Not MALFORMED, as in `_exchange`. A serial that was never sent would confirm packets that never arrived.
            return Status(StatusCode.UNKNOWN, text=f"no answer of lane {number} had serial {serial}")
        return found[0]

    def _is_too_full(self, packets: Buffer) -> bool:
        """Whether there are more packets than one body may hold. Parsing them all would cost other users time."""
        packets_max = self.config.packets_per_body_max
        return len(packets) > packets_max * HEADER_SIZE and batch_end(packets, 0, packets_max) < len(packets)

    def _answer(self, attachment: ServedAttachment, lane: ServedLane, handle: int, now: int) -> None:
        """Answer the request with the packets that wait; hold a pull for which nothing waits."""
        reply = lane.answer(now)
        if reply is not None and reply.answer.goes_on:
            self._context.counters.streams_opened += 1
            self._streaming.opened(handle, attachment, lane, now)
        if self.send(reply):
            return
        attachment.parked[handle] = lane
        self._held[handle] = attachment
        # The timer is not cleared when a pull is answered; it checks the held pulls when it fires.
        due_us = attachment.hold.due_us
        if due_us is None or lane.parked_until_us < due_us:
            self._context.deadlines.set(attachment.hold, lane.parked_until_us)

    def _heard(self, attachment: ServedAttachment, served: ServedLink, now: int) -> None:
        """Note that the link is alive, so that it may get waiting packets again."""
        attachment.heard(now)
        served.is_distrusted = False
        if attachment.mailbox.waiting:
            self._attention.wake(attachment)

    def _serve_awake(self, now: int) -> None:
        """Let waiting packets leave: on the attachment's stream, else on held pulls, else on a link (7.4, 7.20, 8)."""
        self._openings.serve_waiting(now)
        awake, pacing = self._attention.awake, self._context.pacing
        while awake or pacing.asked:
            if pacing.asked:
                pacing.serve(now)
                continue
            attachment = awake.popleft()
            attachment.is_awake = False
            mailbox, parked = attachment.mailbox, attachment.parked
            if attachment.is_gone or not mailbox.waiting:
                continue
            if self._streaming.signal(attachment):
                continue
            while parked and mailbox.waiting:
                self.send(next(iter(parked.values())).wake(now))
            link = attachment.usable_link() if attachment.links and mailbox.waiting else None
            if link is not None and not link.is_signalled:
                link.is_signalled = True
                self._links_ready.append(link.link)

    def _respond(self, handle: int, message: Message, previous: int = 0) -> None:
        self._responses.append(self._response(handle, message, previous))

    def _response(self, handle: int, message: Message, previous: int = 0, *, goes_on: bool = False) -> Response:
        status = HTTP_STATUS[message.code] if isinstance(message, Status) else 200
        if status == 200:
            self._context.counters.answers += 1
        else:
            self._context.counters.refusals += 1
        # The answer to a masked repeat is masked, too: a filter may have rejected the first, unmasked answer (7.9).
        mask = self._masks.get(handle) if goes_on else self._masks.pop(handle, None)
        return Response(handle, status, encode_envelope(message, mask=mask), previous, goes_on)

    def _goes_on(self, reply: Reply) -> bool:
        """Whether more of the same body follows. If not, forget its stream."""
        if not reply.answer.goes_on:
            self._streaming.ended(reply.handle)
        return reply.answer.goes_on
