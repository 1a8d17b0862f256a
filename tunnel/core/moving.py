"""Moves of open connections from relay to relay (PROTOCOL 6.11): which ones, to where, when, and how often.

An endpoint that sits at several relays has an `Endpoint` for each. They are `Siblings`, and each has a `Moves`. An
initiator's `Moves` asks through a sibling to resume a connection there; when the acceptor agrees, that sibling takes
the connection over. At the acceptor, admission does the same when such a resume comes. The initiator alone decides: its
relay drains or does not answer, or the acceptor does not.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import NamedTuple

from tunnel.core.admission import AdmittingOwner
from tunnel.core.attachment_options import AttachmentOptions
from tunnel.core.budget import BudgetShares
from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import Input, State
from tunnel.core.constants import (
    MOVE_REST_US,
    MOVE_REST_US_MAX,
    MOVE_SPREAD_BITS,
    MOVE_TRIES,
    MOVES_ALL_MAX,
    MOVES_MAX,
    NEVER_US,
    PACKET_PAYLOAD_MAX,
    RESUME_INTERVAL_US,
)
from tunnel.core.silence import SilenceWatch
from tunnel.core.tombstones import RouteName, Tombstones
from tunnel.wire import (
    FURTHER_IDS_MAX,
    HEADER_SIZE,
    TO_SOURCE,
    Accepted,
    Packet,
    PacketType,
    RejectReason,
    decode_accepted,
    decode_rejected,
    encode_leave,
)

__all__ = ["Moves", "MovingOwner", "Siblings", "Stay", "StayCause"]

_ACCEPTED, _REJECTED = int(PacketType.ACCEPTED), int(PacketType.REJECTED)


class MovingOwner(AdmittingOwner):
    """What the siblings of an endpoint use of it."""

    attachment_options: AttachmentOptions
    random: Random
    connections: dict[int, Connection]
    tombstones: Tombstones

    def connection_of(self, route: RouteName) -> Connection | None:
        """Return the accepted connection of this user and route key, if it is here."""
        raise NotImplementedError

    def last_answer(self, route: RouteName, now: int) -> bytes | None:
        """Return the answer to a late CONNECT of a connection that has ended here; None if there was none."""
        raise NotImplementedError


class Siblings:
    """The endpoints of one process at several relays.

    `is_one_domain`: equal names of users stand for one user at all these relays, so connections that were accepted at
    one of them may move to another one. `seek` is called when connections are to leave a relay, with its place in the
    order of preference: perhaps the process is not attached to another one yet.
    """

    def __init__(self, *, is_one_domain: bool, seek: Callable[[int], None] = lambda place: None) -> None:
        self.is_one_domain = is_one_domain
        self.seek = seek
        self.members: list[Moves] = []  # by preference
        self.shares: BudgetShares | None = None  # of the users in one domain

    def add(self, member: "Moves") -> None:
        """Add an endpoint, and let those who accept connections name its id."""
        self.members.append(member)
        self.members.sort(key=lambda one: one.place)
        if self.is_one_domain:
            for one in self.members:
                others = [other.owner.endpoint_id for other in self.members if other is not one]
                one.owner.further_ids = tuple(others[:FURTHER_IDS_MAX]) or None

    def holder(self, connection_id: int) -> "Moves | None":
        """Return the endpoint that has this connection."""
        return next((one for one in self.members if connection_id in one.owner.connections), None)

    def knows(self, connection_id: int) -> bool:
        """Whether one of the endpoints has the connection, or its tombstone."""
        return any(
            connection_id in one.owner.connections or one.owner.tombstones.has_id(connection_id) for one in self.members
        )

    def connection_of(self, route: RouteName) -> Connection | None:
        """Return the connection of this user and route key that an endpoint has accepted."""
        found = (one.owner.connection_of(route) for one in self.members)
        return next((connection for connection in found if connection is not None), None)

    def last_answer(self, route: RouteName, now: int) -> bytes | None:
        """Return the answer to a late CONNECT of a connection that has ended at one of the endpoints."""
        found = (one.owner.last_answer(route, now) for one in self.members)
        return next((answer for answer in found if answer is not None), None)


class StayCause(enum.Enum):
    """Why a connection stays at a relay that does not serve it."""

    OPENS = enum.auto()  # it has no answer yet
    FOLLOWS = enum.auto()  # the other end alone begins a move
    BOUND = enum.auto()  # the other end names no other relay
    ALONE = enum.auto()  # no other relay here can take it
    VAIN = enum.auto()  # the latest try to move it had no success


class Stay(NamedTuple):
    """Why a connection stays where it is. After a vain try: which endpoint asked, and what was answered, or "" if
    nothing was."""

    cause: StayCause
    asked: "Moves | None" = None
    answer: str = ""


class _Rest(NamedTuple):
    """What a connection that stays for a while has behind it."""

    vain: int  # tries
    until_us: int
    latest: Stay


class _Try:
    """One try to move a connection."""

    __slots__ = ("acceptor", "connection", "due_us", "number", "sent", "to")

    def __init__(self, connection: Connection, to: "Moves", number: int) -> None:
        self.acceptor = connection.identity.acceptor_endpoint
        self.connection = connection
        self.to = to
        self.number = number
        self.sent = 0
        self.due_us = 0


class Moves:
    """Moves the connections that this endpoint has initiated when its relay drains or does not answer, and those whose
    acceptor does not answer there.

    One thing because each try counts among all others, and its success, failure or rest decides which begins next.
    `place`: how many relays are preferred to this one. `wake` makes the caller look at this endpoint again, since a
    sibling has given it something to send.
    """

    def __init__(self, owner: MovingOwner, siblings: Siblings, place: int, wake: Callable[[], None]) -> None:
        self.owner = owner
        self.place = place
        self.wake = wake
        self.siblings = siblings
        self.due_us = NEVER_US
        self._is_present = False
        self.watch = SilenceWatch()
        self._begin_us = NEVER_US  # when to look for connections that leave; NEVER_US while the relay serves them
        self._next: dict[bytes | None, deque[Connection]] = {}  # those that are still to be moved, by acceptor
        self._tries: dict[int, _Try] = {}
        self._counts: dict[bytes | None, int] = {}  # how many tries there are, by acceptor
        self._rests: dict[int, _Rest] = {}  # by connection: those that were tried in vain
        self._silent: set[int] = set()  # the connections whose acceptor does not answer here

    # getters

    @property
    def is_usable(self) -> bool:
        """Whether the relay answers and does not drain."""
        return self._is_present and not self.owner.attachment_options.is_draining

    @property
    def carries_all(self) -> bool:
        """Whether the relay takes the packets of every connection: those that have a number are not divided again."""
        return self.owner.carrier.packet_bytes_max >= PACKET_PAYLOAD_MAX + HEADER_SIZE

    @property
    def may_take(self) -> bool:
        """Whether a connection may move to this relay."""
        return self.is_usable and self.carries_all

    def why_stays(self, connection: Connection) -> Stay | None:
        """Return why a connection is still here although the relay, or its acceptor, does not serve it. None: it is
        served, or about to be moved."""
        identity = connection.identity
        rest = self._rests.get(connection.id)
        if self.is_usable and connection.id not in self._silent:
            return None
        if not identity.initiator:
            return Stay(StayCause.FOLLOWS)
        if not identity.peer_id:
            return Stay(StayCause.OPENS)
        if not identity.further_ids:
            return Stay(StayCause.BOUND)
        if rest is not None:
            return rest.latest
        return None if self._destinations() else Stay(StayCause.ALONE)

    # changes of the relay

    def on_relay(self, now: int, *, is_present: bool) -> None:
        """Note whether the relay answers. It may have been restarted, and drain no more, without ever being away."""
        was_present, self._is_present = self._is_present, is_present
        if is_present != was_present or (self.is_usable and self._begin_us != NEVER_US):
            self.on_change(now)

    def on_change(self, now: int) -> None:
        """Note that the relay has begun or ended to answer or to drain."""
        if self.is_usable:
            self._begin_us = NEVER_US
            self._next.clear()
            self.watch.look_soon(now)
            for one in self.siblings.members:
                one.look_again(now)
        elif self._begin_us == NEVER_US:
            self._begin_us = now + self.owner.random.getrandbits(MOVE_SPREAD_BITS)
            self.watch.stop()
            self._next.clear()
            self.siblings.seek(self.place)
        self._set_due(now)

    def look_again(self, now: int) -> None:
        """Note that a relay has begun to answer, so that connections may move there."""
        if self._begin_us != NEVER_US or self._next:
            self._set_due(now)
            self.wake()

    # the acceptors

    def on_initiated(self, now: int) -> None:
        """Note that this endpoint has a connection that it, or a sibling, has initiated."""
        self.watch.begin(now)
        self.due_us = min(self.due_us, self.watch.due_us)

    def on_packets(self, now: int) -> None:
        """Note that packets have come from the relay."""
        self.watch.look_soon(now)
        self.due_us = min(self.due_us, self.watch.due_us)

    def on_unanswered(self, now: int) -> None:
        """Note that data of a connection is sent again because no acknowledgement comes."""
        self.watch.look_now(now)
        self.due_us = min(self.due_us, self.watch.due_us)

    def on_receipt(self, token: int, now: int, *, ok: bool) -> None:
        """Note that the relay has a batch, or that it was given up."""
        self.watch.on_receipt(token, now, ok=ok)
        self.due_us = min(self.due_us, self.watch.due_us)

    def _look(self, now: int) -> None:
        """Ask the acceptors that are silent, and find the connections that they do not answer."""
        if not self.is_usable:
            self.watch.stop()
            return
        silent, asked = self.watch.look(self.owner.connections.values(), now)
        self._silent = {one.id for one in silent}
        for connection in asked:
            connection.liveness.ask(connection.sender.rtt.base_rto_us(), now)
            self.owner.touch(connection)
        self._next.clear()
        self._add_next(silent)
        if silent:
            self._forget_rests()
            if not self._destinations():
                self.siblings.seek(self.place)

    def _forget_rests(self) -> None:
        here = self.owner.connections
        self._rests = {number: rest for number, rest in self._rests.items() if number in here}

    # timers

    def handle_timeout(self, now: int) -> None:
        """Repeat what was not answered, give up what was not answered for long, and begin to move others."""
        for one in list(self._tries.values()):
            if one.connection.owner is not self.owner or one.connection.state is State.CLOSED:
                self._end(one)
            elif one.due_us <= now:
                if one.sent >= MOVE_TRIES or not one.to.is_usable:
                    self._give_up(one, now)
                else:
                    self._ask(one, now)
        if self.watch.due_us <= now:
            self._look(now)
        if self._next or self._begin_us <= now:
            self._begin(now)
        self._set_due(now)

    def _set_due(self, now: int) -> None:
        due_us = min((one.due_us for one in self._tries.values()), default=NEVER_US)
        if self._destinations():
            has_room = not self._is_full and any(self._room(one) > 0 for one in self._next)
            due_us = now if has_room else min(due_us, self._begin_us)
        self.due_us = min(due_us, self.watch.due_us)

    @property
    def _is_full(self) -> bool:
        """Whether no try may begin until another one ends."""
        return len(self._tries) >= MOVES_ALL_MAX

    def _room(self, acceptor: bytes | None) -> int:
        """Return how many tries more may begin for this acceptor. One that does not answer leaves room for others."""
        return min(MOVES_MAX - self._counts.get(acceptor, 0), MOVES_ALL_MAX - len(self._tries))

    def _end(self, one: _Try) -> None:
        del self._tries[one.connection.id]
        self._counts[one.acceptor] -= 1
        if not self._counts[one.acceptor]:
            del self._counts[one.acceptor]

    def _add_next(self, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self._next.setdefault(connection.identity.acceptor_endpoint, deque()).append(connection)

    def _destinations(self) -> "list[Moves]":
        return [one for one in self.siblings.members if one is not self and one.may_take]

    def _begin(self, now: int) -> None:
        """Ask for as many moves as may be unanswered. After a vain try, the next relay has its turn: the acceptor may
        sit there."""
        destinations = self._destinations()
        if not destinations:
            return
        if self._begin_us <= now:
            self._forget_rests()
            self._next.clear()
            self._add_next(self.owner.connections.values())
            self._begin_us = now + MOVE_REST_US  # for those that rest, and for those that only open
        if self._is_full:
            return
        for acceptor, waiting in list(self._next.items()):
            room = self._room(acceptor)
            while waiting and room > 0:
                room -= self._begin_one(waiting.popleft(), destinations, now)
            if not waiting:
                del self._next[acceptor]
            if self._is_full:
                return

    def _begin_one(self, connection: Connection, destinations: "list[Moves]", now: int) -> bool:
        """Begin a try, unless the connection stays or rests. Return whether one has begun."""
        rest = self._rests.get(connection.id)
        if rest is not None and rest.until_us > now:
            self._look_by(rest.until_us)
            return False
        if not self._may_leave(connection):
            return False
        identity = connection.identity
        identity.tried_move = max(identity.tried_move, identity.move) + 1
        to = destinations[0 if rest is None else rest.vain % len(destinations)]
        one = self._tries[connection.id] = _Try(connection, to, identity.tried_move)
        self._counts[one.acceptor] = self._counts.get(one.acceptor, 0) + 1
        self._ask(one, now)
        return True

    def _look_by(self, due_us: int) -> None:
        """Look again for connections that leave at this time: the rest of one is over."""
        if self._begin_us != NEVER_US:
            self._begin_us = min(self._begin_us, due_us)
        else:
            self.watch.look_by(due_us)

    def _may_leave(self, connection: Connection) -> bool:
        """Whether to try to move the connection now. One without an answer stays: two acceptors could open it."""
        identity = connection.identity
        return (
            connection.owner is self.owner
            and identity.initiator
            and bool(identity.peer_id and identity.further_ids)
            and connection.state is not State.CLOSED
            and connection.id not in self._tries
        )

    def _ask(self, one: _Try, now: int) -> None:
        one.sent += 1
        one.due_us = now + RESUME_INTERVAL_US
        one.to.owner.send(one.connection.handshake.moving_packet(one.to.owner.carrier, one.number))
        one.to.wake()

    def _give_up(self, one: _Try, now: int, answer: str = "") -> None:
        """Stay, and resume here: the acceptor may have moved although its answer did not come."""
        connection = one.connection
        self._end(one)
        rest = self._rests.get(connection.id)
        vain = 0 if rest is None else rest.vain
        until_us = now + min(MOVE_REST_US << min(vain, 16), MOVE_REST_US_MAX)
        self._rests[connection.id] = _Rest(vain + 1, until_us, Stay(StayCause.VAIN, one.to, answer))
        connection.identity.move = connection.identity.tried_move + 1
        self._leave(connection, one.to)  # the acceptor's answer may still bind a route there
        connection.handshake.route_lost(now)
        self.owner.touch(connection)
        self._set_due(now)
        self.wake()

    # packets that come to a sibling

    def receive(self, packet: Packet, now: int) -> bool:
        """Process a packet that belongs to a sibling's connection: an answer to a resume, or one that is out of date
        and gets no answer. Return False if no sibling has the connection."""
        own_id = packet.source if packet.type in TO_SOURCE else packet.destination
        home = self.siblings.holder(own_id)
        if home is None:
            return False
        one = home._tries.get(own_id)  # noqa: SLF001 - of the same class
        if one is not None and one.to is self:
            if packet.type == _ACCEPTED:
                home._accepted(one, packet, now)  # noqa: SLF001
            elif packet.type == _REJECTED:
                home._rejected(one, packet, now)  # noqa: SLF001
        elif packet.type == _ACCEPTED:  # a resume came here after LEAVE, and has bound a route
            self._leave(home.owner.connections[own_id], self)
        return True

    def _accepted(self, one: _Try, packet: Packet, now: int) -> None:
        connection, identity = one.connection, one.connection.identity
        accepted = decode_accepted(packet.payload)
        if accepted is None or not _answers(accepted, one) or packet.destination != identity.peer_id:
            connection.stats.packets_discarded += 1
            return
        if not one.to.owner.take_over(connection, now):
            return
        self._end(one)
        self._rests.pop(connection.id, None)
        identity.move = one.number
        connection.handshake.go_on(accepted.options, now)
        one.to.owner.touch(connection)
        self._leave(connection, self)
        self._set_due(now)

    def _leave(self, connection: Connection, place: "Moves") -> None:
        """Let a relay forget the route of a connection that goes on at another one."""
        identity = connection.identity
        payload = encode_leave(identity.move)
        place.owner.send(Packet(PacketType.LEAVE, identity.own_id, identity.peer_id, 0, payload))
        place.wake()

    def _rejected(self, one: _Try, packet: Packet, now: int) -> None:
        rejected = decode_rejected(packet.payload)
        if rejected is None or rejected.route_key != one.connection.identity.route_key:
            one.connection.stats.packets_discarded += 1
        elif rejected.reason == RejectReason.FINISHED and one.connection.state is State.DRAIN:
            self._end(one)
            one.connection.apply(Input.DRAINED, now)  # both ends have everything
            self._set_due(now)
            self.wake()
        else:
            self._give_up(one, now, rejected.text or _reason(rejected.reason))


def _reason(number: int) -> str:
    """Return the name of a reason for a refusal, for people."""
    known = number in RejectReason.__members__.values()
    return RejectReason(number).name.lower().replace("_", " ") if known else f"reason {number}"


def _answers(accepted: Accepted, one: _Try) -> bool:
    return accepted.route_key == one.connection.identity.route_key and accepted.options.move == one.number
