"""The switch's data model: the objects that it remembers, and the references between them.

An *attachment* is an endpoint's authenticated presence, with its lanes, links and mailbox (section 6). A *route* joins
two attachments and has one *leg* at each (3.2). A *listener* is an attachment that listens for one service (2.8).
Their tables and operations are in `registry`, `routes`, `services` and `lifecycle`.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from functools import partial
from itertools import islice
from typing import TypeAlias

import msgspec

from tunnel.exchange.served.served import Reply, ServedLane, ServedLimits
from tunnel.wire import AbortReason, Attached, Connect, Frame, PublicPlace
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.deadlines import Deadline
from tunnel_servlet.switch.inline_id import strangers_of
from tunnel_servlet.switch.mailboxes.budgets import Budget
from tunnel_servlet.switch.mailboxes.lane_outbox import LaneOutbox
from tunnel_servlet.switch.mailboxes.links import ServedLink
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox
from tunnel_servlet.switch.mailboxes.open_streams import OpenStreams
from tunnel_servlet.switch.mailboxes.queues import RouteQueue
from tunnel_servlet.switch.stats import Traffic
from tunnel_servlet.switch.witness import NOWHERE, Acceptor, EndpointFacts, Opening, Origin

__all__ = [
    "ANY_TOKEN",
    "Account",
    "Attention",
    "Credential",
    "Leg",
    "Listener",
    "Route",
    "RouteState",
    "ServedAttachment",
    "Turn",
    "Withdrawn",
    "named_ids",
]

_FORGOTTEN_AT_ONCE = 2  # with each that is added, at most: so the oldest ones go, and no call takes long

Turn: TypeAlias = tuple[str, str]
"""Those who take one turn at a service: a user; or the strangers who come to the service of one user (2.11), by the
names of the user and the owner, which are then the same."""


class Credential(msgspec.Struct):
    """What an endpoint attaches with: the id of its user's token, and how many endpoints may be attached with it."""

    token: str = ""
    endpoints_max: int = 0  # 0: as many as the user may have


ANY_TOKEN = Credential()


class Account:
    """The resources that one user occupies at this relay."""

    __slots__ = ("_left_us", "attachments", "beyond", "budget", "heard", "routes", "traffic", "user")

    def __init__(self, user: str, budget: Budget, traffic: Traffic | None = None) -> None:
        self.user = user
        self.budget = budget
        self.attachments = 0
        # Attachments beyond the limit, the oldest first: each is to replace another with its first exchange or link.
        self.beyond: OrderedDict[ServedAttachment, None] = OrderedDict()
        self.heard: dict[str, int] = {}  # by token with a limit of its own: its attachments that are no late copies
        self.routes = 0  # open routes that the user's attachments initiated
        self.traffic = traffic or Traffic()
        self._left_us: deque[int] = deque()  # when routes were left for another relay, the oldest first

    def may_leave(self, now: int, span_us: int, routes_max: int) -> bool:
        """Note that a route is left for another relay. Return False if as many were left within this time."""
        left = self._left_us
        while left and left[0] + span_us <= now:
            left.popleft()
        if len(left) >= routes_max:
            return False
        left.append(now)
        return True

    def has_room(self, credential: Credential) -> bool:
        """Whether another endpoint may attach with this token."""
        return not credential.endpoints_max or self.heard.get(credential.token, 0) < credential.endpoints_max


class RouteState(enum.Enum):
    """The state of a route."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    PARKED = "parked"  # not handed on yet; a resume stays so while the endpoint that it names is not attached (6.5)
    WAITING = "waiting"  # for a listener with room (2.8)
    HANDED = "handed"  # CONNECT was handed to an acceptor (3.2)
    BOUND = "bound"
    RELEASED = "released"


def named_ids(connect: Connect) -> tuple[bytes, ...]:
    """Return the ids of the acceptor that a resume names: at this relay, and at others (6.11)."""
    options = connect.options
    return ((options.endpoint_id,) if options.endpoint_id is not None else ()) + (options.further_ids or ())


class Leg:
    """One side of a route. `queue` holds the packets for this side. `far_id` is 0 until the route is bound."""

    __slots__ = ("attachment", "far", "far_id", "has_shut", "mailbox", "own_id", "queue", "route")

    def __init__(self, attachment: ServedAttachment, own_id: int, queue: RouteQueue, route: Route) -> None:
        self.attachment = attachment
        self.mailbox = attachment.mailbox
        self.own_id = own_id
        self.queue = queue
        self.route = route
        self.far = self
        self.far_id = 0
        self.has_shut = False  # this side has sent SHUTDOWN or ABORT


class Route:
    """A connection as the relay sees it. While the route is parked or waits, `acceptor` is the initiator's leg.

    One thing because all that opens, moves, records or ends a connection needs the same facts about it.
    """

    __slots__ = (
        "acceptor",
        "bound_us",
        "deadline",
        "endpoint_ids",
        "frame",
        "initiator",
        "is_aborted",
        "is_lingering",
        "is_noted",
        "listener",
        "move",
        "number",
        "offers_encryption",
        "opened_us",
        "origin",
        "owner",
        "resume",
        "route_key",
        "rule",
        "state",
        "target",
        "user",
        "waits_for",
    )

    def __init__(
        self, connect: Connect, frame: Frame, user: str, owner: str = "", rule: str = "", origin: Origin = NOWHERE
    ) -> None:
        self.number = 0  # under which the operator knows it; no other route of this relay's process has it
        self.opened_us = 0
        self.route_key = connect.route_key  # drawn by the initiator (3.1)
        self.target = connect.target  # the authorised target
        self.resume = connect.resume
        self.offers_encryption = connect.options.encryption is not None
        self.endpoint_ids = named_ids(connect)  # the acceptor's, if this is a resume
        self.move = connect.options.move or 0  # of its newest CONNECT (6.11)
        self.frame: Frame | None = frame  # the CONNECT to hand on, with the user added; None once bound
        self.state = RouteState.PARKED
        self.initiator: Leg
        self.acceptor: Leg
        self.deadline: Deadline
        self.listener: Listener | None = None
        self.is_lingering = False
        self.is_aborted = False  # one side has sent ABORT
        self.is_noted = False  # the witness knows that it has ended
        self.bound_us = 0
        self.rule = rule  # that allows it
        self.origin = origin  # of its CONNECT
        self.user = user  # of the initiator
        self.owner = owner  # if a stranger opened it: the user of the service, who alone may accept (2.11)
        self.waits_for = ""  # the name of the service, while the route waits

    @property
    def turn(self) -> Turn:
        """Those with whom the route takes turns at its service."""
        return self.user, self.owner

    @property
    def asks_as(self) -> str:
        """The name to which the rules must allow the route: the user, or, if a stranger opened it, the name that stands
        for the strangers of the service's user."""
        return strangers_of(self.owner) if self.owner else self.user

    def opening(self) -> Opening:
        """Return what a witness may know of the connection that the initiator asks for."""
        endpoint = self.initiator.attachment.facts(self.origin)
        return Opening(endpoint, self.initiator.own_id, self.target, self.rule, self.owner, self.resume)

    def accepted_by(self) -> Acceptor | None:
        """Return what a witness may know of the acceptor; None while there is none."""
        leg = self.acceptor
        if leg is self.initiator:
            return None
        attachment = leg.attachment
        return Acceptor(attachment.account.user, attachment.name, attachment.is_exit, leg.own_id)


class Listener:
    """An attachment that listens, or has listened, under the name of one service.

    The relay remembers it after it went down, because an older LISTEN_STATE may still arrive.
    """

    __slots__ = ("attachment", "backlog", "is_up", "name", "pending", "pending_of", "public", "version")

    def __init__(self, attachment: ServedAttachment, name: str) -> None:
        self.attachment = attachment
        self.name = name
        self.version = 0
        self.is_up = False
        self.backlog = 0
        self.public: PublicPlace | None = None  # where people without the tunnel reach the service
        self.pending = 0  # CONNECTs that were handed to it and are unanswered
        self.pending_of: dict[Turn, int] = {}  # the part of `pending` that belongs to each user

    def takes(self, owner: str) -> bool:
        """Whether it accepts strangers who come to a service of this user. With "", which means users, always true."""
        return not owner or (self.public is not None and self.attachment.account.user == owner)

    def has_room(self, turn: Turn) -> bool:
        """Whether the relay may hand it another CONNECT of this user, who may not have more of them than are free."""
        free = max(1, self.backlog) - self.pending
        return self.is_up and free > 0 and self.pending_of.get(turn, 0) < max(1, free)

    def awaits(self, turn: Turn) -> None:
        """Note that a CONNECT of this user was handed to it."""
        self.pending += 1
        self.pending_of[turn] = self.pending_of.get(turn, 0) + 1

    def unawait(self, turn: Turn) -> None:
        """Note that a CONNECT of this user was answered or withdrawn."""
        self.pending -= 1
        self.pending_of[turn] -= 1
        if not self.pending_of[turn]:
            del self.pending_of[turn]


class Withdrawn(msgspec.Struct):
    """A CONNECT that was denied, or handed to another acceptor, after it was handed to an attachment. Until `until_us`,
    an ACCEPTED for it is answered with an ABORT with this reason and text."""

    until_us: int
    reason: AbortReason
    text: str


class ServedAttachment:
    """An attachment at the relay.

    `mailbox` holds the packets that wait for it, `legs` its sides of routes, and `handed` the routes that were handed
    to it and that it has accepted or may still accept. One thing because each part of the switch keeps here what it
    knows of this endpoint, and all of it ends with the attachment.
    """

    __slots__ = (
        "_are_doubted",
        "_config",
        "_limits",
        "_unheard_since_us",
        "accepted",
        "account",
        "attached",
        "attached_us",
        "awaited",
        "claim",
        "credential",
        "expiry",
        "handed",
        "has_encrypted",
        "held_lanes",
        "hold",
        "identity",
        "is_awake",
        "is_exit",
        "is_gone",
        "is_heard",
        "is_leaving",
        "is_silence_known",
        "lanes",
        "last_seen_us",
        "legs",
        "lingering",
        "links",
        "listeners",
        "mailbox",
        "name",
        "number",
        "option_version",
        "origin",
        "pull_interval_us",
        "resuming",
        "routes_opened",
        "streams",
        "withdrawn",
    )

    def __init__(
        self,
        identity: bytes,
        account: Account,
        context: SwitchContext,
        attention: Attention,
        credential: Credential,
        *,
        is_exit: bool,
    ) -> None:
        config = context.config
        self.credential = credential  # of its first ATTACH
        self.identity = identity
        self.number = 0  # under which the operator knows it; no other attachment of this relay's process has it
        self.attached_us = 0
        self.account = account
        self.name = ""
        self.claim = ""  # the name in its ATTACH; becomes `name` with its first exchange or link at the latest
        self.is_heard = False  # it made an exchange or a link, so its ATTACH was not a late copy from a dead endpoint
        self.is_exit = is_exit
        self.has_encrypted = False  # it has taken up an offer to encrypt (3.13)
        self.is_leaving = False  # it takes no further connections, and is about to end (6.10)
        self._unheard_since_us: int | None = None  # a CONNECT was handed to it then, and nothing has come from it since
        self.is_silence_known = False  # its silence was reported
        self.is_awake = False  # queued in `Attention.awake`
        self.is_gone = False
        self.last_seen_us = 0
        self.origin = NOWHERE  # of what came from it last
        self.attached: Attached  # the answer to ATTACH, set by `renew`
        self.pull_interval_us = 0
        self.option_version = 0
        size = config.exit_mailbox_bytes_max if is_exit else config.mailbox_bytes_max
        # An exit serves all users, so the packets that wait for it count for no user.
        budget = Budget(size, config.pool_bytes(size), context.budget if is_exit else account.budget)
        self.mailbox = Mailbox(budget, config, context.counters, context.pacing, partial(attention.wake, self))
        self.mailbox.traffic = account.traffic
        self.legs: dict[int, Leg] = {}  # by `own_id`
        self.handed: dict[bytes, Route] = {}  # by route key
        # Routes that it initiated and that wait for the second SHUTDOWN, the longest waiting first.
        self.lingering: OrderedDict[Route, None] = OrderedDict()
        self.routes_opened = 0
        # By route key: CONNECTs that were handed to it, and are meant for it no longer; the oldest first.
        self.withdrawn: OrderedDict[bytes, Withdrawn] = OrderedDict()
        self.accepted: dict[str, int] = {}  # by user: how many of the routes in `handed` are theirs
        self.resuming: Counter[str] = Counter()  # by user: how many of these are resumes without an answer
        self.listeners: dict[str, Listener] = {}
        self.links: dict[int, ServedLink] = {}
        self.held_lanes: OrderedDict[int, ServedLane] = OrderedDict()  # by the handle of the held pull, oldest first
        self.expiry: Deadline  # set by `lifecycle`
        self.hold: Deadline
        self.awaited: dict[int, int] = {}  # by the initiator's id: how many of its CONNECTs have no answer yet
        self.lanes: dict[int, tuple[ServedLane, LaneOutbox]] = {}
        self._are_doubted = False  # other links may be stalled, too
        self.streams = OpenStreams()
        self._limits = ServedLimits(1)
        self._config = config

    @property
    def generation(self) -> int:
        """The newest generation (6.2)."""
        return self.attached.generation

    def facts(self, origin: Origin | None = None) -> EndpointFacts:
        """Return what a witness may know of it. `origin` is that of what it asks for; by default, of what came last."""
        return EndpointFacts(self.account.user, self.name or self.claim, self.is_exit, origin or self.origin)

    def set_pull_interval(self, wanted_ms: int) -> None:
        """Set the pull interval to what the endpoint asks for, clamped to the configured bounds (2.7, 7.11)."""
        config = self._config
        self.pull_interval_us = min(max(wanted_ms * 1000, config.pull_interval_us_min), config.pull_interval_us_max)

    @property
    def left_us(self) -> int:
        """The silence after which an endpoint that has said that it leaves, and has nothing left, has left (9.6)."""
        return self._config.silent_us + self.pull_interval_us

    def has_nothing_left(self) -> bool:
        """Whether no request of the endpoint is open, and it has no connection.

        Only an exit may say that it leaves while it has connections (6.10). Those that it has ended do not count, but
        those for whose resume it may come back do.
        """
        if self.links or self.held_lanes or self.streams.lanes:
            return False
        is_resumed = any(route.resume and route.state is RouteState.HANDED for route in self.handed.values())
        return not self.is_exit or not (is_resumed or any(not leg.has_shut for leg in self.legs.values()))

    # --- unanswered CONNECTs

    def on_heard(self, now: int) -> None:
        """Note that something has come from the endpoint."""
        self.last_seen_us = now
        self._unheard_since_us = None

    def is_silent(self, now: int) -> bool:
        """Whether nothing has come from the endpoint for a while since a CONNECT was handed to it (6.10)."""
        return self._unheard_since_us is not None and (
            self.unheard_us(now) >= self._config.silent_us + self.pull_interval_us
        )

    def unheard_us(self, now: int) -> int:
        """Return the time since a CONNECT was handed to the endpoint; 0 if something has come from it since then."""
        return 0 if self._unheard_since_us is None else now - self._unheard_since_us

    def on_asked(self, now: int) -> None:
        """Note that a CONNECT was handed to the attachment, perhaps again."""
        if self._unheard_since_us is None:
            self._unheard_since_us = now
            self.is_silence_known = False

    def awaits(self, initiator_id: int) -> None:
        """Note that a CONNECT from this id was handed to the attachment."""
        self.awaited[initiator_id] = self.awaited.get(initiator_id, 0) + 1

    def unawait(self, initiator_id: int) -> None:
        """Note that a CONNECT from this id was answered or withdrawn."""
        self.awaited[initiator_id] -= 1
        if not self.awaited[initiator_id]:
            del self.awaited[initiator_id]

    def withdraw(self, route_key: bytes, reason: AbortReason, text: str, now: int) -> None:
        """Remember that a CONNECT that was handed to the attachment is no longer meant for it, and why."""
        for key, found in list(islice(self.withdrawn.items(), _FORGOTTEN_AT_ONCE)):
            if found.until_us <= now:
                del self.withdrawn[key]
        self.withdrawn.pop(route_key, None)
        if len(self.withdrawn) >= self._config.routes_max:  # users who come and leave may make many
            self.withdrawn.popitem(last=False)
        self.withdrawn[route_key] = Withdrawn(now + self._config.pending_timeout_us, reason, text)

    def is_awaited(self, initiator_id: int) -> bool:
        """Whether a CONNECT from this id is unanswered, so that ACCEPTED may come at any moment."""
        return initiator_id in self.awaited

    # --- lanes

    def renew(self, attached: Attached, body_bytes_max: int) -> list[Reply]:
        """Start a generation: reset all lanes and put unconfirmed packets back at the head of the mailbox (6.2).

        Return the answers to the requests that the lanes held.
        """
        replies = self.close_lanes()
        self.attached = attached
        config = self._config
        self._limits = ServedLimits(
            lanes=config.lanes_max,
            packet_bytes_max=config.packet_bytes_max,
            answer_bytes_max=min(config.body_bytes_max, body_bytes_max),
            hold_us_max=config.hold_us_max,
            streams=config.streams,
            stream_packets_max=config.unreceipted_packets_max,
        )
        return replies

    def close_lanes(self) -> list[Reply]:
        """End all lanes and return the answers to the requests that they held.

        Unconfirmed packets go back to the head of the mailbox, those of the first lane first.
        """
        replies: list[Reply] = []
        for lane, outbox in reversed(self.lanes.values()):
            replies += lane.close()
            outbox.count_incoming(0)
        self.lanes.clear()
        return replies

    def has_lane(self, lane: ServedLane) -> bool:
        """Whether this lane belongs to the present generation."""
        return any(one is lane for one, _ in self.lanes.values())

    def lane(self, number: int) -> tuple[ServedLane, LaneOutbox]:
        """Return the lane of this number, which must be below the announced limit; create it if necessary."""
        found = self.lanes.get(number)
        if found is None:
            outbox = LaneOutbox(number, self.mailbox, self.streams)
            lane = ServedLane(number, outbox, self.evidence, self._limits, self.streams.window)
            found = lane, outbox
            self.lanes[number] = found
        return found

    def evidence(self) -> list[tuple[int, int]]:
        """Return the highest answered number of every lane (7.7)."""
        return [(number, lane.answered) for number, (lane, _) in self.lanes.items()]

    def hold_ends_us(self) -> int | None:
        """Return the time at which the first held pull must be answered empty, or None if no pull is held."""
        return min((lane.parked_until_us for lane in self.held_lanes.values()), default=None)

    # --- links

    def usable_link(self) -> ServedLink | None:
        """Of the links that are not distrusted, return the one that was opened or preferred last, if it has room. Older
        ones are spares, or were replaced and will close, so what this one has no room for waits for it.

        Of those that share the load, return the one with the least, but none that was signalled: until the host polls
        it, it takes no more.
        """
        limits = self._config.unreceipted_bytes_max, self._config.unreceipted_packets_max
        best = None
        for link in reversed(self.links.values()):
            if link.is_distrusted:
                continue
            has_room = link.room(*limits) > 0
            if link.line is None:
                return link if has_room else best
            if has_room and not link.is_signalled and (best is None or link.load < best.load):
                best = link
        return best

    def prefer(self, link: ServedLink, now: int) -> None:
        """Prefer the link on which the endpoint sends, and distrust a stalled one.

        A stalled link may be dead although no close was reported.
        """
        links = self.links
        if next(reversed(links)) != link.link:
            links[link.link] = links.pop(link.link)
            self._are_doubted = True
        if self._are_doubted or link.line is not None:
            self.distrust_links(now)

    def distrust_links(self, now: int, *, pulls: bool = False) -> None:
        """Distrust the newest stalled link, because the endpoint pulls, or sends on another link.

        Unless it pulls, the last of the links that share the load is not looked at: on a slow path each of them may be
        late, and nothing else would carry.
        Its packets without a receipt go back to the head of the mailbox. Each call does so for one link only, because
        other users wait meanwhile. An older stalled link follows when the endpoint next pulls or sends.
        """
        since_us = now - self._config.link_stalled_us
        self._are_doubted = False
        for link in reversed(self.links.values()):
            if link.is_stalled(since_us, now) and (pulls or not self._is_last_line(link)):
                self._are_doubted = True
                self.mailbox.put_back(link.stall(now))
                return

    def _is_last_line(self, link: ServedLink) -> bool:
        """Whether the link shares the load with others, which all stall, or are left."""
        return link.line is not None and all(
            one is link or one.is_distrusted or one.is_left or (one.line is not None and one.line.is_stalled)
            for one in self.links.values()
        )


class Attention:
    """The attachments with newly waiting packets. The switch serves them before it returns to its caller."""

    def __init__(self) -> None:
        self.awake: deque[ServedAttachment] = deque()

    def wake(self, attachment: ServedAttachment) -> None:
        """Note that something waits for the attachment."""
        if not attachment.is_awake:
            attachment.is_awake = True
            self.awake.append(attachment)
