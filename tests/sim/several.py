"""Endpoints at several relays that die, freeze, drain and come back: open connections move, and lose nothing (6.11).

An acceptor may also lose one relay for good, which its initiators still reach. Each seed runs the real switches and
endpoints on a virtual clock, in steps of `STEP`. At each relay, a user who knows every id and route key, but has
another name, tries to take connections over.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.servlet.support import DATABASE, MS, REPORTS, SECOND, Peer, Relay
from tests.sim.violation import Violation
from tunnel.core import (
    Closed,
    Connection,
    ConnectRequested,
    Endpoint,
    EndpointConfig,
    Incoming,
    Lost,
    Moved,
    PeerClosedError,
    Refused,
    Siblings,
    State,
)
from tunnel.wire import Answer, Attached, Connect, Options, Packet, PacketType, Status, encode_connect

__all__ = ["Several", "main", "run_several"]

STEP = 50 * MS
ASKS_US = SECOND  # an endpoint without anything to send asks the relay so often, at least
FAULTS_US = 60 * SECOND  # faults begin during this time
STREAMS = 10
TEXT_MAX = 250_000  # bytes
PACKET_MAX = 1 << 24
CHECKS_EVERY = 8  # exchanges; each would be half of the time of a seed
FAULTS = ("die", "freeze", "drain", "cut", "cut", "part")
_ENDS = (Closed, Lost)


class Place:
    """A relay, and what is wrong with it."""

    def __init__(self, number: int, now: int) -> None:
        self.number = number
        self.relay = Relay(checks_every=CHECKS_EVERY)
        self.relay.now = now
        self.lives = 1
        self.back_us = 0  # until then it is dead or frozen
        self.is_frozen = False
        self.ends_us = 0  # when it dies, if it drains

    def is_up(self, now: int) -> bool:
        return now >= self.back_us

    def restart(self, now: int) -> None:
        """Begin a new life, which knows nothing."""
        self.relay = Relay(checks_every=CHECKS_EVERY)
        self.relay.now = now
        self.lives += 1
        self.is_frozen = False
        self.ends_us = 0


class Seat:
    """The presence of a party at a relay: an endpoint, and its exchanges."""

    def __init__(self, party: Party, place: Place, user: str, seed: int, *, is_exit: bool) -> None:
        self.party = party
        self.place = place
        self.peer = Peer(place.relay, user, seed, is_exit=is_exit)
        self.life = 0  # of the relay, in which it attached
        self.generation = 0
        self.asked_us = 0  # when the latest exchange left
        self.away_us = 0  # since then the relay does not answer; 0: it does
        self.cut_us = 0  # until then the path to the relay is cut
        self.is_parted = False  # it is cut for good, while others reach the relay
        self.stuck: list[tuple[int, list[Packet]]] = []  # batches that have left for a relay that is frozen
        self.endpoint = Endpoint(
            EndpointConfig(exit=is_exit), Random(seed), endpoint_id=self.peer.identity, name=f"{user}@{place.number}"
        )

    def step(self, now: int) -> None:
        """Exchange what there is to exchange."""
        if not self.place.is_up(now) or now < self.cut_us or self.is_parted:
            self._away(now)
            return
        if self.away_us or self.life != self.place.lives:
            self._attach(now)
        for _, packets in self.stuck:  # they arrive now, although their sender has given them up
            self._exchange(packets, now)
        self.stuck.clear()
        if not self._has_work(now):
            return
        self.asked_us = now
        for _ in range(3):
            batch = self.endpoint.next_batch(1 << 16, now) if self.endpoint.wants_batch() else None
            found = self._exchange(batch.packets if batch is not None else [], now)
            if found is None:  # the relay does not know us any more
                self.endpoint.batch_done(batch.token if batch is not None else 0, False, now)
                self.life = 0
                return
            if batch is not None:
                self.endpoint.batch_done(batch.token, True, now)
            elif not found:
                return

    def _has_work(self, now: int) -> bool:
        """Whether an exchange would carry something. Otherwise a seed would spend half of its time on empty ones."""
        attachment = self.place.relay.switch._registry.by_id.get(self.peer.identity)
        is_silent = attachment is not None and not attachment.mailbox.waiting and not self.endpoint.wants_batch()
        return not is_silent or now - self.asked_us >= ASKS_US

    def _away(self, now: int) -> None:
        frozen = self.place.is_frozen and not self.place.is_up(now)
        if not self.away_us:
            self.away_us = now
            if frozen and (batch := self.endpoint.next_batch(1 << 16, now)) is not None:
                self.stuck.append((batch.token, batch.packets))
        elif now - self.away_us == 6 * STEP:
            for token, _ in self.stuck:
                self.endpoint.batch_done(token, False, now)
            if not frozen:
                self.stuck.clear()
            self.endpoint.on_detached(now)

    def _attach(self, now: int) -> None:
        is_new = self.life != self.place.lives
        self.away_us = 0
        if not is_new:
            self.endpoint.on_attached(False, PACKET_MAX, 1 << 16, now)
            return
        self.peer.relay = self.place.relay
        self.stuck.clear()
        self.generation += 1
        self.peer.generation = self.generation
        answer = self.peer.attach()
        if not isinstance(answer, Attached):
            return
        self.life = self.place.lives
        self.endpoint.on_attached(True, answer.packet_bytes_max, answer.initial_edge_bytes, now)

    def _exchange(self, packets: list[Packet], now: int) -> list[Packet] | None:
        """Return the packets that have come; None if the relay does not know us."""
        if self.life != self.place.lives:
            return None
        message = self.place.relay.message(handle := self.peer.send(*packets))
        if isinstance(message, Status):
            return None
        assert isinstance(message, Answer)
        found = self.peer.packets(handle)
        del self.place.relay.responses[handle]
        self.endpoint.receive_packets(found, now)
        return found


@dataclass
class Half:
    """One end of a stream: what it writes, and what it has read."""

    connection: Connection
    text: bytes
    written: int = 0
    read: bytearray = field(default_factory=bytearray)
    is_finished: bool = False
    end: object = None


class Party:
    """A process that sits at several relays."""

    def __init__(self, several: Several, user: str, *, is_exit: bool = False, same_users: bool = True) -> None:
        self.several = several
        self.siblings = Siblings(is_one_domain=same_users)
        self.halves: dict[int, Half] = {}
        self.moves = 0
        order = list(enumerate(several.places))
        several.random.shuffle(order)
        self.seats = [Seat(self, place, user, several.new_seed(), is_exit=is_exit) for _, place in order]
        for rank, seat in enumerate(self.seats):
            seat.endpoint.join(self.siblings, rank, lambda: None)

    def step(self, now: int) -> None:
        for seat in self.seats:
            due_us = seat.endpoint.next_timeout()
            if due_us is not None and due_us <= now:
                seat.endpoint.handle_timeout(now)
            seat.step(now)
            self._events(seat, now)
        for half in list(self.halves.values()):
            self._go_on(half, now)

    def _events(self, seat: Seat, now: int) -> None:
        while (event := seat.endpoint.poll_event()) is not None:
            if isinstance(event, ConnectRequested):
                seat.endpoint.accept(event.connection_id, now)
                self._accepted(seat, event.connection_id)
            elif isinstance(event, Incoming):
                self._accepted(seat, event.connection_id)
            elif isinstance(event, Moved):
                self.moves += 1
                if event.connection_id not in seat.endpoint.connections:
                    raise Violation(f"{seat.endpoint.name} got a connection that it does not have")
            elif isinstance(event, Refused):  # the relay was full, drained, or did not know the acceptor yet
                key = self.halves.pop(event.connection_id).connection.identity.route_key
                del self.several.texts[key]
                self.several.refused.add(key)
            elif isinstance(event, _ENDS) and event.connection_id in self.halves:
                self.halves[event.connection_id].end = event

    def _accepted(self, seat: Seat, number: int) -> None:
        connection = seat.endpoint.connections[number]
        key = connection.identity.route_key
        if key in self.several.accepted:
            raise Violation(f"the connection {number} was opened twice")
        self.several.accepted.add(key)
        if (
            key not in self.several.refused
        ):  # a relay that drains can refuse what it has handed over: this end times out
            self.halves[number] = Half(connection, self.several.texts[key][1])

    def _go_on(self, half: Half, now: int) -> None:
        connection = half.connection
        if half.end is not None or connection.state is State.CLOSED:
            return
        try:
            chunk = half.text[half.written : half.written + self.several.random.randrange(1, 3_000)]
            if chunk:
                half.written += connection.write(chunk, now)
            elif not half.is_finished:
                half.is_finished = True
                connection.finish(now)
        except PeerClosedError:
            pass
        while data := connection.read(1 << 16, now):
            half.read += data
        if half.is_finished and connection.at_eof:
            connection.close(now)


class Several:
    """The world of one seed."""

    def __init__(self, seed: int, relays: int, *, same_users: bool = True, faults: tuple[str, ...] = FAULTS) -> None:
        self.faults = faults
        self.random = Random(seed)
        self.now = SECOND
        self.places = [Place(number, self.now) for number in range(relays)]
        self.texts: dict[bytes, tuple[bytes, bytes]] = {}  # by route key: those of initiator and acceptor
        self.accepted: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.thefts = 0
        self._seed = seed * 100
        self.exit = Party(self, "exits", is_exit=True, same_users=same_users)
        self.service = Party(self, "rita", same_users=same_users)
        self.client = Party(self, "ann")
        self.parties = [self.exit, self.service, self.client]
        for seat in self.service.seats:
            seat.endpoint.listen("reports", 64, self.now)
        self.thieves = [Peer(place.relay, "mallory", self.new_seed()) for place in self.places]

    def new_seed(self) -> int:
        self._seed += 1
        return self._seed

    # running

    def run(self) -> None:
        """Run the seed. Raise Violation if a promise is broken."""
        self.until(lambda: self.now > 2 * SECOND)
        opened = 0
        ends_us = self.now + FAULTS_US
        while self.now < ends_us:
            if opened < STREAMS and self.random.random() < 0.02:
                opened += self._open()
            if self.random.random() < 0.03:
                self._fault()
            if self.random.random() < 0.1:
                self._steal()
            self.step()
        self.until(self._is_over, 180 * SECOND)
        for half in self._halves():
            self._check(half)
        self.until(self._is_empty, 400 * SECOND)

    def step(self) -> None:
        self.now += STEP
        for place in self.places:
            if place.ends_us and place.ends_us <= self.now:
                place.restart(self.now)
            if place.is_up(self.now):
                place.relay.advance(self.now - place.relay.now)
        for party in self.parties:
            party.step(self.now)

    def until(self, reached: Callable[[], bool], most_us: int = 10 * SECOND) -> None:
        ends_us = self.now + most_us
        while not reached():
            if self.now > ends_us:
                raise Violation("what must come to an end does not")
            self.step()

    def _is_over(self) -> bool:
        accepted = self.accepted - self.refused
        return len(accepted) == len(self.texts) and all(half.end is not None for half in self._halves())

    def _halves(self) -> list[Half]:
        """Return the ends of all connections that were not refused."""
        halves = [half for party in self.parties for half in party.halves.values()]
        return [half for half in halves if half.connection.identity.route_key not in self.refused]

    def _is_empty(self) -> bool:
        seats = [seat for party in self.parties for seat in party.seats]
        routes = sum(place.relay.switch.stats().routes for place in self.places)
        return not routes and not any(seat.endpoint.connections for seat in seats)

    def _check(self, half: Half) -> None:
        key = half.connection.identity.route_key
        expected = self.texts[key][1 if half.connection.identity.initiator else 0]
        if not isinstance(half.end, Closed):
            raise Violation(f"{half.connection.id} ended with {half.end}")
        if bytes(half.read) != expected:
            raise Violation(f"{half.connection.id} read {len(half.read)} bytes, not the {len(expected)} that were sent")

    # what happens

    def _open(self) -> bool:
        target = self.random.choice((DATABASE, REPORTS))
        acceptor = self.exit if target is DATABASE else self.service
        parted = [seat.place for seat in acceptor.seats if seat.is_parted]
        usable = [
            seat
            for seat in self.client.seats
            if seat.endpoint._seat is not None and seat.endpoint._seat.is_usable and seat.place not in parted
        ]
        if not usable:
            return False
        connection = usable[0].endpoint.connect(target, self.now)
        text = self._text()
        self.texts[connection.identity.route_key] = text, self._text()
        self.client.halves[connection.id] = Half(connection, text)
        return True

    def _text(self) -> bytes:
        return self.random.randbytes(self.random.randrange(TEXT_MAX))

    def _fault(self) -> None:
        place = self.random.choice(self.places)
        if not place.is_up(self.now):
            return
        lasts_us = self.random.randrange(1, 400) * STEP
        kind = self.random.choice(self.faults)
        if kind == "die":
            place.restart(self.now)
            place.back_us = self.now + lasts_us
        elif kind == "freeze":
            place.is_frozen = True
            place.back_us = self.now + lasts_us
        elif kind == "drain":
            place.ends_us = self.now + lasts_us
            place.relay.switch.drain()
            for _ in place.relay.switch.tell_draining(lambda: self.now):
                place.relay.settle()
        elif kind == "part":
            self._part(place, lasts_us)
        else:
            seats = [seat for party in self.parties for seat in party.seats if seat.place is place]
            self.random.choice(seats).cut_us = self.now + lasts_us

    def _part(self, place: Place, lasts_us: int) -> None:
        """Let the acceptor of an open connection lose this relay for good, unless it has lost another one. Often the
        initiator loses it at the same time, for a while, so that both ends move. What waits for the answer to a CONNECT
        is given up, as an application does after a while: it must not move."""
        (mine,) = (seat for seat in self.client.seats if seat.place is place)
        targets = [one.identity.target for one in mine.endpoint.connections.values() if one.state is State.OPEN]
        if not targets:
            return
        acceptor = self.exit if self.random.choice(targets) == DATABASE else self.service
        if any(seat.is_parted for seat in acceptor.seats):
            return
        for seat in acceptor.seats:
            seat.is_parted = seat.place is place
        if self.random.random() < 0.4:
            mine.cut_us = self.now + lasts_us
        for number, half in list(self.client.halves.items()):
            if half.connection.state in (State.CONNECTING, State.CLOSED_EARLY):
                half.connection.abort(self.now)
                key = self.client.halves.pop(number).connection.identity.route_key
                del self.texts[key]
                self.refused.add(key)

    def _steal(self) -> None:
        """Try to resume someone else's connection with all that is known of it."""
        halves = [half for half in self.client.halves.values() if half.connection.identity.peer_id and not half.end]
        number = self.random.randrange(len(self.places))
        place, thief = self.places[number], self.thieves[number]
        if not halves or not place.is_up(self.now):
            return
        thief.relay = place.relay
        if thief.lanes_of != place.lives:  # it is not attached to the present life of the relay
            thief.generation = place.lives
            if not isinstance(thief.attach(), Attached):
                return
        half = self.random.choice(halves)
        identity = half.connection.identity
        ids = tuple(seat.endpoint.endpoint_id for party in (self.exit, self.service) for seat in party.seats)
        options = Options(endpoint_id=identity.acceptor_endpoint, further_ids=ids[:8], move=identity.move + 9)
        connect = Connect(identity.route_key, True, identity.target, 1 << 16, options)
        packet = Packet(PacketType.CONNECT, identity.own_id, identity.peer_id, 1, encode_connect(connect))
        self.thefts += 1
        for answer in [*thief.packets(thief.send(packet)), *thief.packets(thief.send())]:
            if answer.type == PacketType.ACCEPTED:
                raise Violation("another user took a connection over")


def main(first: int, count: int, relays: int, jobs: int) -> int:
    """Run the seeds, and print what failed and a summary. Return 1 if a promise was broken, else 0."""
    work = [(seed, relays) for seed in range(first, first + count)]
    moves = thefts = failed = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for (seed, _), outcome in zip(work, pool.imap(_outcome, work), strict=True):
            if isinstance(outcome, str):
                failed += 1
                print(f"seed {seed} FAILED: {outcome}", flush=True)
            else:
                moves, thefts = moves + outcome[0], thefts + outcome[1]
    print(
        f"{count} seeds with {relays} relays, {failed} failed: {moves} moves, {thefts} attempts to steal a connection"
    )
    return 1 if failed else 0


def _outcome(item: tuple[int, int]) -> tuple[int, int] | str:
    try:
        return run_several(*item)
    except Violation as violation:
        return str(violation)
    except Exception:
        return "exception\n" + traceback.format_exc(limit=-12)


def run_several(seed: int, relays: int) -> tuple[int, int]:
    """Run a seed. Return the number of moves at both ends, and of attempts to steal a connection."""
    several = Several(seed, relays)
    several.run()
    return sum(party.moves for party in several.parties), several.thefts
