"""The life of attachments: ATTACH, generations, names, replacement and expiry (section 6, 9.6)."""

from functools import partial
from typing import Protocol

from tunnel.exchange.served.served import Reply
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import Attach, Attached, DropReason, Status, StatusCode, attachment_id
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.deadlines import Deadline
from tunnel_servlet.switch.model import ANY_TOKEN, Credential, ServedAttachment
from tunnel_servlet.switch.registry import Registry
from tunnel_servlet.switch.routes.openings import Openings
from tunnel_servlet.switch.routes.routes import RouteTable
from tunnel_servlet.switch.routes.services import Services
from tunnel_servlet.switch.streaming import Streaming
from tunnel_servlet.switch.witness import NOWHERE, EndpointEnd, Origin

__all__ = ["BEYOND_MAX", "UNKNOWN", "Lifecycle", "LifecycleHost"]

UNKNOWN = Status(StatusCode.UNKNOWN)  # another user's attachment gets the same answer as one that does not exist (6.1)
_VERSION = 1  # the protocol version of this relay (7.11)
_BUSY_RETRY_MS = 1000
BEYOND_MAX = 8  # attachments that one user may have beyond the limit, because each is to replace another one


class LifecycleHost(Protocol):
    """The object that keeps the HTTP requests and links of attachments: the switch."""

    def send(self, reply: Reply | None) -> bool:
        """Send a reply to the request that it answers. Return False, and do nothing, if it is None."""

    def end_links(self, attachment: ServedAttachment) -> None:
        """Close the attachment's links, and put their packets without a receipt back at the head of the mailbox."""

    def refuse_held(self, attachment: ServedAttachment) -> None:
        """Answer the attachment's held pulls, and end its streams, with STATUS(unknown)."""

    def end_holds(self, attachment: ServedAttachment, now: int) -> None:
        """Answer the pulls whose hold is over."""


class Lifecycle:
    """Creates, renews and removes attachments."""

    def __init__(
        self,
        epoch: int,
        context: SwitchContext,
        registry: Registry,
        routes: RouteTable,
        openings: Openings,
        services: Services,
        streaming: Streaming,
        host: LifecycleHost,
    ) -> None:
        self._epoch = epoch
        self._context = context
        self._registry = registry
        self._routes = routes
        self._openings = openings
        self._services = services
        self._streaming = streaming
        self._host = host

    def attach(
        self,
        user: str,
        message: Attach,
        now: int,
        *,
        is_exit: bool,
        credential: Credential = ANY_TOKEN,
        identity: bytes | None = None,
        origin: Origin = NOWHERE,
    ) -> Attached | Status:
        """Handle ATTACH and return the answer. `identity` is given only for an endpoint in this process."""
        lowest, highest = message.versions
        if not lowest <= _VERSION <= highest:
            return Status(StatusCode.MALFORMED, text=f"this relay speaks only version {_VERSION}")
        if identity is None:
            identity = attachment_id(message.secret)
        attachment = self._registry.by_id.get(identity)
        if attachment is None:
            return self._admit(identity, user, message, credential, now, is_exit=is_exit, origin=origin)
        if attachment.account.user != user:
            return UNKNOWN
        if message.generation < attachment.generation:
            return Status(StatusCode.STALE)
        attachment.on_heard(now)
        attachment.origin = origin
        if message.generation > attachment.generation:
            self._host.end_links(attachment)
            self._renew(attachment, message, now, fresh=not attachment.is_heard)
        return attachment.attached

    def on_first_heard(self, attachment: ServedAttachment, now: int) -> bool:
        """Handle the attachment's first exchange or link: only now does it take its name from an older attachment.

        ATTACH alone does not suffice: a proxy may deliver the ATTACH of a dead endpoint a minute late (6.4). If the
        user, the token or the relay has too many attachments, and this one replaced none, remove this one and return
        False.
        """
        account = attachment.account
        is_beyond = account.beyond.pop(attachment, True) is None
        if self._context.witness is not None:
            self._context.witness.on_attached(attachment.facts())
        if attachment.claim != attachment.name:
            self._take_name(attachment, now)
        has_room = account.has_room(attachment.credential)
        self._registry.count_heard(attachment)
        if not has_room or (is_beyond and not self._registry.fits(account)):
            self.remove(attachment, DropReason.NO_ROUTE, now, EndpointEnd.DISPLACED)
            return False
        self._succeed(attachment, now)
        return True

    def remove(self, attachment: ServedAttachment, reason: DropReason, now: int, end: EndpointEnd) -> None:
        """Remove the attachment and release its routes. The other sides of bound routes get DROPPED with `reason`."""
        self._context.deadlines.clear(attachment.expiry)
        self._context.deadlines.clear(attachment.hold)
        self._host.refuse_held(attachment)
        self._host.end_links(attachment)
        attachment.close_lanes()
        self._services.forget(attachment, now)
        self._openings.leave(attachment, now)
        has_left = end is EndpointEnd.LEFT
        self._routes.release_all(attachment, reason, now, has_left=has_left)
        if reason is DropReason.GONE:  # resumes that were still to be handed to it would wait for ever
            self._routes.refuse_parked(attachment.identity, now)
        self._registry.remove(attachment)
        lost = TraceReason.GONE if reason is DropReason.GONE else TraceReason.USER_TIMEOUT
        why = TraceReason.CLEAN if has_left else lost
        self._context.trace(TraceEvent.DETACHED, now, reason=why, text=attachment.account.user)
        if self._context.witness is not None and attachment.is_heard:
            self._context.witness.on_detached(attachment.facts(), end)

    # --- inside

    def _admit(
        self,
        identity: bytes,
        user: str,
        message: Attach,
        credential: Credential,
        now: int,
        *,
        is_exit: bool,
        origin: Origin,
    ) -> Attached | Status:
        if self._registry.was_replaced(identity, now):
            # Otherwise the older endpoint would take the name back, and each would end the other's connections forever.
            text = f"a newer endpoint of this user has the name {message.name!r}: start each under a name of its own"
            return Status(StatusCode.DENIED, text=text)
        if self._openings.is_draining:
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, "the relay is shutting down")
        has_room = self._registry.has_room(user)
        holder = self._registry.holder_of(user, message.name)
        if holder is None and not has_room:
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, "the relay has no room for another attachment")
        if holder is None and not self._registry.has_token_room(user, credential):
            text = f"{credential.endpoints_max} endpoint(s) are attached with this token, and it is for no more"
            return Status(StatusCode.BUSY, _BUSY_RETRY_MS, text)
        if holder is not None and not has_room and len(holder.account.beyond) >= BEYOND_MAX:
            oldest = next(iter(holder.account.beyond))
            self.remove(oldest, DropReason.NO_ROUTE, now, EndpointEnd.DISPLACED)  # its endpoint attaches again
        attachment = self._registry.add(identity, user, credential, is_exit=is_exit)
        if not has_room:
            attachment.account.beyond[attachment] = None
        attachment.last_seen_us = attachment.attached_us = now
        attachment.origin = origin
        attachment.expiry = Deadline(partial(self._expire, attachment))
        attachment.hold = Deadline(partial(self._host.end_holds, attachment))
        self._streaming.attach(attachment)
        self._context.deadlines.set(attachment.expiry, now + self._context.config.attachment_timeout_us)
        self._context.counters.attaches_fresh += 1
        self._renew(attachment, message, now, fresh=True)
        self._openings.on_attached(attachment, now)
        return attachment.attached

    def _renew(self, attachment: ServedAttachment, message: Attach, now: int, *, fresh: bool) -> None:
        """Start a new generation of the attachment (6.2)."""
        config, user = self._context.config, attachment.account.user
        holder = self._registry.holder_of(user, message.name)
        attachment.claim = message.name
        if attachment.is_heard or holder is None or holder is attachment:
            self._take_name(attachment, now)
            if attachment.is_heard:
                self._succeed(attachment, now)
        attachment.set_pull_interval(message.pull_interval_ms)
        attached = Attached(
            attachment_id=attachment.identity,
            epoch=self._epoch,
            generation=message.generation,
            fresh=fresh,
            body_bytes_max=config.body_bytes_max,
            packet_bytes_max=config.packet_bytes_max,
            hold_ms_max=config.hold_us_max // 1000,
            pull_interval_ms=attachment.pull_interval_us // 1000,
            initial_edge_bytes=config.initial_edge_bytes,
            lanes=config.lanes_max,
            version=_VERSION,
            packets_max=config.packets_per_body_max,
            streams=config.streams,
            age=self._context.age(now),
        )
        self._streaming.detach(attachment)
        for reply in attachment.renew(attached, message.body_bytes_max):
            self._host.send(reply)
        self._context.trace(TraceEvent.ATTACHED, now, text=user)

    def _take_name(self, attachment: ServedAttachment, now: int) -> None:
        self._registry.serve(attachment)  # first, so that an exit that replaces another one is not the first exit
        self._replace(attachment.account.user, attachment.claim, attachment, now)
        self._registry.rename(attachment, attachment.claim)

    def _replace(self, user: str, name: str, by: ServedAttachment | None, now: int) -> None:
        """Remove the older attachment of this name, if there is one other than `by` (6.4)."""
        older = self._registry.holder_of(user, name)
        if older is None or older is by:
            return
        self._context.counters.attachments_replaced += 1
        self._registry.note_replaced(older.identity, now)
        self.remove(older, DropReason.GONE, now, EndpointEnd.REPLACED)

    def _succeed(self, attachment: ServedAttachment, now: int) -> None:
        """Treat the endpoint that had this name until it left as replaced, if it is another one (6.4)."""
        left = self._registry.take_left(attachment.account.user, attachment.name, now)
        if left is not None and left not in self._registry.by_id:
            self._registry.note_replaced(left, now)
            self._routes.refuse_parked(left, now)

    def _expire(self, attachment: ServedAttachment, now: int) -> None:
        """Remove the attachment, if it has been silent for long enough (9.6).

        Exchanges do not move the timer. Instead, when it fires, it checks the time of the last exchange.
        """
        timeout_us = self._context.config.attachment_timeout_us
        has_left = attachment.is_leaving and attachment.has_nothing_left()
        if has_left:
            timeout_us = min(timeout_us, attachment.left_us)
        due_us = timeout_us + (now if attachment.links else attachment.last_seen_us)
        if due_us > now:
            if attachment.is_leaving:  # what it still has may end at any time
                due_us = min(due_us, now + attachment.left_us)
            self._context.deadlines.set(attachment.expiry, due_us)
            return
        if has_left:
            self._context.counters.attachments_left += 1
            self.remove(attachment, DropReason.GONE, now, EndpointEnd.LEFT)
            self._registry.note_left(attachment.account.user, attachment.name, attachment.identity, now)
        else:
            self._context.counters.attachments_expired += 1
            self.remove(attachment, DropReason.NO_ROUTE, now, EndpointEnd.SILENT)
