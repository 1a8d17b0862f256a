"""The relay's switch, without I/O: request bodies and link packets in, responses and link packets out (section 7, 9).

The shell hands in what arrives, then drains `poll_response`, `poll_link_ready` and `poll_link_end` until each gives
None, and calls `handle_timeout` when `next_timeout` says so. The shell authenticates: the user it names is believed.
"""

from collections import deque
from random import Random

import msgspec

from tunnel.exchange.served import Reply, ServedLane
from tunnel.traces.record import TraceSink
from tunnel.wire import (
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
    decode_envelope,
    encode_envelope,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.decisions import Authorise, MayListen, PacketFilter
from tunnel_servlet.switch.forwarding import Forwarder
from tunnel_servlet.switch.invariants import check
from tunnel_servlet.switch.lifecycle import UNKNOWN, Lifecycle
from tunnel_servlet.switch.links import ServedLink
from tunnel_servlet.switch.model import Attention, RouteState, ServedAttachment
from tunnel_servlet.switch.openings import Openings
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes import RouteTable
from tunnel_servlet.switch.services import Services
from tunnel_servlet.switch.stats import SwitchStats

__all__ = ["Response", "Switch"]

_BUSY_RETRY_MS = 1000

# What is wrong with a body, and whether repeating it may help (7.10).
_BAD_BODY = {
    EnvelopeError.NOT_OURS: StatusCode.CORRUPT,  # the magic itself may be what was damaged
    EnvelopeError.TRUNCATED: StatusCode.CORRUPT,
    EnvelopeError.CORRUPT: StatusCode.CORRUPT,
    EnvelopeError.VERSION: StatusCode.MALFORMED,
    EnvelopeError.MALFORMED: StatusCode.MALFORMED,
}


def _unsent(lane: ServedLane, serial: int) -> str:
    return (
        f"no answer of lane {lane.lane} had serial {serial}, the newest had {lane.serial}:"
        " a new generation starts its serials at 1"
    )


def _allow_any_name(user: str, name: str) -> bool:
    return True


class Response(msgspec.Struct):
    """The answer to one HTTP request."""

    handle: int
    status: int  # of HTTP
    body: list[Buffer]


class Switch:
    """Everything that the relay remembers: attachments, routes, mailboxes. Nothing that a peer sends makes it raise."""

    def __init__(
        self,
        config: SwitchConfig,
        random: Random,
        authorise: Authorise,
        *,
        may_listen: MayListen = _allow_any_name,
        packet_filter: PacketFilter | None = None,
        trace: TraceSink | None = None,
    ) -> None:
        self.config = config
        self.epoch = random.getrandbits(64)  # 6.3
        self._context = SwitchContext(config, trace)
        self._attention = Attention()
        self._registry = Registry(self._context, self._attention)
        self._routes = RouteTable(self._context)
        self._services = Services(config, may_listen)
        self._openings = Openings(self._context, self._registry, self._routes, self._services, authorise)
        self._forwarder = Forwarder(self._context, self._routes, self._openings, self._services, packet_filter)
        self._lifecycle = Lifecycle(
            self.epoch, self._context, self._registry, self._routes, self._openings, self._services, self
        )
        self._responses: deque[Response] = deque()
        self._held: dict[int, ServedAttachment] = {}  # whose pull is parked, by its handle
        self._links: dict[int, tuple[ServedAttachment, ServedLink]] = {}
        self._links_ready: deque[int] = deque()
        self._links_ended: deque[int] = deque()

    # --- what there is

    def stats(self) -> SwitchStats:
        """How things are now."""
        counts, budget = self._routes.counts, self._context.budget
        return SwitchStats(
            users=len(self._registry.accounts),
            attachments=len(self._registry.by_id),
            exits=len(self._registry.exits),
            links=len(self._links),
            parked_pulls=len(self._held),
            routes=len(self._routes),
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

    def check_invariants(self) -> None:
        """InvariantError if the switch is wrong about itself. For tests and the simulator: it recounts everything."""
        check(self._context, self._attention, self._registry, self._routes)

    # --- time

    def next_timeout(self) -> int | None:
        """When `handle_timeout` should be called at the latest."""
        return self._context.deadlines.next_timeout()

    def handle_timeout(self, now: int) -> None:
        """Do what is due. Early or late calls are harmless."""
        for deadline in self._context.deadlines.expired(now):
            deadline.fire(now)
        self._look_after(now)

    # --- requests

    def request(self, handle: int, user: str, body: Buffer, now: int, *, is_exit: bool = False) -> None:
        """One complete HTTP request body of an authenticated user. `handle` names the HTTP exchange until its response.

        `is_exit`: should this attach an endpoint, then it dials TCP targets for everybody.
        """
        if len(user.encode()) > USER_BYTES_MAX:
            raise ValueError(f"a user name has at most {USER_BYTES_MAX} bytes")
        self._context.counters.requests += 1
        if len(body) > self.config.body_bytes_max:
            self._respond(handle, Status(StatusCode.TOO_LARGE, text=f"at most {self.config.body_bytes_max} bytes"))
            return
        message = decode_envelope(body)
        answer: Message | None
        if isinstance(message, Exchange):
            answer = self._exchange(handle, user, message, now)
        elif isinstance(message, Attach):
            answer = self._lifecycle.attach(user, message, now, is_exit=is_exit)
        elif isinstance(message, EnvelopeError):
            answer = Status(_BAD_BODY[message], text=message.value)
        else:
            answer = Status(StatusCode.MALFORMED, text="not a request")
        if answer is not None:
            self._respond(handle, answer)
        self._look_after(now)

    def gone(self, handle: int, now: int) -> None:
        """The HTTP connection of this request died: nothing is to be sent there."""
        attachment = self._held.pop(handle, None)
        if attachment is not None:
            attachment.parked.pop(handle).gone(handle)

    def poll_response(self) -> Response | None:
        """The next answer to send."""
        return self._responses.popleft() if self._responses else None

    def drain(self) -> None:
        """Open nothing new from now on: CONNECT is refused as shutting down."""
        self._openings.is_draining = True

    # --- links

    def link_opened(self, link: int, user: str, identity: bytes, epoch: int, generation: int, now: int) -> bool:
        """A link of this attachment is there; False: it is not the attachment's, or one too many. Close it then."""
        attachment = self._registry.find(identity, user)
        if attachment is None or epoch != self.epoch or generation != attachment.generation or link in self._links:
            return False
        if len(attachment.links) >= self.config.links_per_attachment_max:
            return False
        attachment.last_seen_us = now
        if not attachment.is_heard:
            self._lifecycle.heard(attachment, now)
        self._context.counters.links_opened += 1
        served = attachment.links[link] = ServedLink(link)
        self._links[link] = attachment, served
        self._attention.wake(attachment)
        self._look_after(now)
        return True

    def link_packets(self, link: int, frames: list[Frame], now: int) -> None:
        """Packets of one whole batch."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            self._heard(attachment, served)
            if len(attachment.links) > 1:
                attachment.prefer(served, now)
            self._forwarder.receive(attachment, frames, now)
            self._look_after(now)

    def link_receipted(self, link: int, batches: int, now: int) -> None:
        """The oldest so many batches given by `poll_link` and not receipted yet have arrived (8.2)."""
        found = self._links.get(link)
        if found is not None:
            attachment, served = found
            attachment.mailbox.confirmed(served.receipted(batches))
            self._heard(attachment, served)
            self._look_after(now)

    def poll_link_ready(self) -> int | None:
        """A link for which something waits: ask `poll_link` until it gives nothing or the link can take no more, and
        again when the link can take more."""
        return self._links_ready.popleft() if self._links_ready else None

    def poll_link(self, link: int, limit_bytes: int, now: int) -> list[Frame]:
        """The packets of the link's next batch; they stay with the switch until they are receipted."""
        found = self._links.get(link)
        if found is None:
            return []
        attachment, served = found
        served.is_signalled = False
        if not attachment.mailbox.waiting or served.unreceipted_bytes >= self.config.unreceipted_bytes_max:
            return []
        frames = attachment.mailbox.take(limit_bytes)
        served.sent(frames, now)
        self._look_after(now)
        return frames

    def link_closed(self, link: int, now: int) -> None:
        """The link ended: what it owes receipts for leaves another way."""
        found = self._links.pop(link, None)
        if found is not None:
            attachment, served = found
            del attachment.links[link]
            attachment.last_seen_us = now
            attachment.mailbox.put_back(served.take_back())
            self._attention.wake(attachment)
            self._look_after(now)

    def poll_link_end(self) -> int | None:
        """A link that the shell is to close: its attachment or generation is no more. The switch has forgotten it."""
        return self._links_ended.popleft() if self._links_ended else None

    # --- what the parts of the switch ask of it (LifecycleHost)

    def send(self, reply: Reply | None) -> bool:
        """Answer a request, if it is to be answered now."""
        if reply is None:
            return False
        attachment = self._held.pop(reply.handle, None)
        if attachment is not None:
            del attachment.parked[reply.handle]
        self._respond(reply.handle, reply.answer)
        return True

    def end_links(self, attachment: ServedAttachment) -> None:
        """Close the attachment's links; what they owe receipts for is first in line again."""
        for link in reversed(attachment.links.values()):
            attachment.mailbox.put_back(link.take_back())
            del self._links[link.link]
            self._links_ended.append(link.link)
        attachment.links.clear()

    def refuse_held(self, attachment: ServedAttachment) -> None:
        """Tell the requests that wait that their attachment is not known."""
        for handle, lane in attachment.parked.items():
            lane.gone(handle)
            del self._held[handle]
            self._respond(handle, UNKNOWN)
        attachment.parked.clear()

    def end_holds(self, attachment: ServedAttachment, now: int) -> None:
        """Answer the requests whose hold is over."""
        for lane in list(attachment.parked.values()):
            self.send(lane.expire(now))
        ends_us = attachment.hold_ends_us()
        if ends_us is not None:
            self._context.deadlines.set(attachment.hold, ends_us)

    # --- inside

    def _exchange(self, handle: int, user: str, exchange: Exchange, now: int) -> Status | None:
        """7.3 and 7.4; the refusal, if it is one."""
        attachment = self._registry.find(exchange.attachment_id, user)
        if attachment is None or exchange.epoch != self.epoch or exchange.generation > attachment.generation:
            return UNKNOWN
        if exchange.generation < attachment.generation:
            return Status(StatusCode.STALE)
        if exchange.lane >= self.config.lanes_max:
            return Status(StatusCode.MALFORMED, text=f"lanes are numbered from 0 to {self.config.lanes_max - 1}")
        lane, outbox = attachment.lane(exchange.lane)
        if not lane.has_sent(exchange.serial_received):
            # Not malformed: a late copy of ATTACH can revive an attachment that was forgotten, and only a new
            # generation tells its endpoint so.
            return Status(StatusCode.UNKNOWN, text=_unsent(lane, exchange.serial_received))
        if exchange.piece and not attachment.mailbox.budget.admits(len(exchange.data)):
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, "no room for a part of a packet")
        attachment.last_seen_us = now
        if not attachment.is_heard:
            self._lifecycle.heard(attachment, now)
        if exchange.pull and attachment.links:
            attachment.distrust_links(now)
        arrival = lane.receive(exchange, handle)
        for reply in arrival.replies:
            self.send(reply)
        if arrival.discarded is not None:
            found = arrival.discarded
            self._context.counters.packets_damaged += found.bad_checksum + found.bad_size + found.truncated
        if arrival.applies:
            outbox.applied(lane.held_bytes)
            self._forwarder.receive(attachment, arrival.frames, now)
            self._answer(attachment, lane, handle, now)
        return None

    def _answer(self, attachment: ServedAttachment, lane: ServedLane, handle: int, now: int) -> None:
        """With what waits; a pull that finds nothing is held."""
        if self.send(lane.answer(now)):
            return
        attachment.parked[handle] = lane
        self._held[handle] = attachment
        # Nobody clears the timer when a pull is answered: it looks when it fires.
        due_us = attachment.hold.due_us
        if due_us is None or lane.parked_until_us < due_us:
            self._context.deadlines.set(attachment.hold, lane.parked_until_us)

    def _heard(self, attachment: ServedAttachment, served: ServedLink) -> None:
        """The link is alive, and may be given what waits."""
        served.is_distrusted = False
        if attachment.mailbox.waiting:
            self._attention.wake(attachment)

    def _look_after(self, now: int) -> None:
        """Give those for whom something waits a way to get it: the oldest held pull, else a link (7.4, 8)."""
        awake = self._attention.awake
        while awake:
            attachment = awake.popleft()
            attachment.is_awake = False
            mailbox, parked = attachment.mailbox, attachment.parked
            if attachment.is_gone or not mailbox.waiting:
                continue
            while parked and mailbox.waiting:
                self.send(next(iter(parked.values())).wake())
            link = attachment.usable_link() if attachment.links and mailbox.waiting else None
            if link is not None and not link.is_signalled:
                link.is_signalled = True
                self._links_ready.append(link.link)

    def _respond(self, handle: int, message: Message) -> None:
        status = HTTP_STATUS[message.code] if isinstance(message, Status) else 200
        if status == 200:
            self._context.counters.answers += 1
        else:
            self._context.counters.refusals += 1
        self._responses.append(Response(handle, status, encode_envelope(message)))
