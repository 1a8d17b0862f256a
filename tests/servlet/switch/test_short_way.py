"""The short way through the relay: the same packets leave, at the same price, as on the general way."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.servlet.support import (
    Peer,
    Relay,
    accepted,
    bind,
    bound,
    client_and_exit,
    connect,
    control,
    data,
    frames_of,
    resume,
)
from tunnel.wire import Frame, Packet, PacketType
from tunnel_servlet.switch.model import ServedAttachment

ACK, PING, FINISH = PacketType.ACK, PacketType.PING, PacketType.FINISH


def linked(relay: Relay, peer: Peer, link: int) -> None:
    assert relay.switch.link_opened(link, peer.user, peer.identity, peer.epoch, peer.generation, relay.now)
    relay.settle()


def joined(*, has_short_way: bool = True, **settings: Any) -> Relay:
    """A relay with a bound route, whose ends have link 1 and link 2."""
    relay = Relay(has_short_way=has_short_way, **settings)
    client, exit_ = bound(relay)
    linked(relay, client, 1)
    linked(relay, exit_, 2)
    return relay


def send(relay: Relay, link: int, *packets: Packet) -> None:
    relay.switch.link_packets(link, frames_of(*packets), relay.now)
    relay.settle()


def poll(relay: Relay, link: int, limit: int = 1 << 16) -> list[tuple[int, int]]:
    frames = relay.switch.poll_link(link, limit, relay.now)
    relay.settle()
    return [(frame.type, frame.sequence) for frame in frames]


def served(relay: Relay, link: int) -> ServedAttachment:
    return relay.switch._links[link][0]


def parcel(relay: Relay, link: int) -> list[Frame]:
    return served(relay, link).mailbox.parcel


def accounts(relay: Relay) -> dict[str, tuple[int, ...]]:
    """What each user is charged at this moment, and has moved."""
    found: dict[str, tuple[int, ...]] = {}
    for name, account in relay.switch._registry.accounts.items():
        budget, traffic = account.budget, account.traffic
        moved = traffic.packets_received, traffic.bytes_received, traffic.packets_sent, traffic.bytes_sent
        found[name] = (budget.held, budget.outstanding, budget.reserved, budget.beyond, *moved)
    return found


USUAL = {
    "DATA": [data(11, 22, 101)],
    "ACK": [control(ACK, 11, 22)],
    "both": [control(ACK, 11, 22), data(11, 22, 101)],
}
OTHER = {
    "DATA before ACK": [data(11, 22, 101), control(ACK, 11, 22)],
    "two of DATA": [data(11, 22, 101), data(11, 22, 102)],
    "three": [control(ACK, 11, 22), data(11, 22, 101), data(11, 22, 102)],
    "PING": [control(PING, 11, 22)],
    "FINISH": [control(FINISH, 11, 22, bytes(24), 101)],
    "large": [data(11, 22, 101, bytes(4096))],
    "no route": [data(12, 22, 101)],
    "another destination": [data(11, 23, 101)],
    "two destinations": [control(ACK, 11, 22), data(11, 23, 101)],
    "two sources": [control(ACK, 12, 22), data(11, 22, 101)],
    "beyond a gap": [data(11, 22, 102)],
    "a repeat": [data(11, 22, 100, attempt=1)],
    "nothing": [],
}


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_batch_waits_as_a_parcel_and_leaves_whole(name: str) -> None:
    relay = joined()
    send(relay, 1, *USUAL[name])
    assert [frame.type for frame in parcel(relay, 2)] == [packet.type for packet in USUAL[name]]
    assert relay.switch.stats().bytes_held > 0 == relay.switch.stats().bytes_outstanding
    assert poll(relay, 2) == [(packet.type, packet.sequence) for packet in USUAL[name]]
    assert parcel(relay, 2) == []
    relay.switch.link_receipted(2, 1, relay.now)
    assert relay.switch.stats().bytes_held == relay.switch.stats().bytes_outstanding == 0


@pytest.mark.parametrize("name", OTHER)
def test_any_other_batch_takes_the_general_way(name: str) -> None:
    relay = joined()
    send(relay, 1, *OTHER[name])
    assert parcel(relay, 2) == []


def test_two_users_a_limit_on_the_rate_of_one_holds_for_the_usual_batch_too() -> None:
    """Otherwise a user who sends one packet at a time would take more of the relay's line than the operator allows."""
    relay = Relay(rates_of=lambda user, target: {"": 1000} if user == "ann" else {})
    client, exit_ = client_and_exit(relay)
    client.push(connect(11))
    exit_.push(accepted(11, 22))
    client.push()
    linked(relay, client, 1)
    linked(relay, exit_, 2)
    left = 0
    for number in range(10):
        send(relay, 1, data(11, 22, 101 + number, bytes(1000)))
        assert parcel(relay, 2) == []
        left += len(poll(relay, 2))
    assert left < 5


def test_data_beyond_the_reservation_of_its_queue_takes_the_general_way() -> None:
    """Only there it is counted against the room that all connections share."""
    found = []
    for has_short_way in (True, False):
        relay = joined(has_short_way=has_short_way, reserved_bytes=100)
        send(relay, 1, data(11, 22, 101, bytes(101)))
        assert parcel(relay, 2) == []
        before = accounts(relay)
        found.append((before, poll(relay, 2), relay.switch.stats(), accounts(relay)))
        send(relay, 1, data(11, 22, 102, bytes(100)))
        assert len(parcel(relay, 2)) == has_short_way
    assert found[0] == found[1]
    assert found[0][1] == [(PacketType.DATA, 101)]


def test_the_first_packet_after_a_resume_takes_the_general_way() -> None:
    """Only there the relay learns where the numbers of the stream go on: it has forgotten the route."""
    relay = Relay()
    client, exit_ = client_and_exit(relay)
    linked(relay, client, 1)
    linked(relay, exit_, 2)
    client.push(resume(11, 22, exit_))
    exit_.push(accepted(11, 22, resumed=True))
    client.push()
    for link in (1, 2):
        poll(relay, link)
    assert relay.switch.stats().routes_bound == 1
    send(relay, 1, data(11, 22, 1))
    assert parcel(relay, 2) == []
    assert poll(relay, 2) == [(PacketType.DATA, 1)]
    send(relay, 1, data(11, 22, 2))
    assert len(parcel(relay, 2)) == 1


def test_without_the_short_way_nothing_waits_as_a_parcel() -> None:
    relay = joined(has_short_way=False)
    send(relay, 1, *USUAL["both"])
    assert parcel(relay, 2) == []
    assert poll(relay, 2) == [(ACK, 0), (PacketType.DATA, 101)]


def test_where_something_waits_a_batch_takes_the_general_way() -> None:
    relay = joined()
    send(relay, 1, data(11, 22, 101))
    send(relay, 1, control(ACK, 11, 22), data(11, 22, 102))
    assert parcel(relay, 2) == []
    assert poll(relay, 2) == [(ACK, 0), (PacketType.DATA, 101), (PacketType.DATA, 102)]


def test_a_parcel_that_the_batch_cannot_hold_is_unpacked() -> None:
    relay = joined()
    send(relay, 1, control(ACK, 11, 22), data(11, 22, 101))
    assert poll(relay, 2, 40) == [(ACK, 0)]
    assert poll(relay, 2) == [(PacketType.DATA, 101)]


def test_a_parcel_of_a_route_that_ends_is_discarded_as_its_packets_would_be() -> None:
    ended = []
    for has_short_way in (True, False):
        relay = joined(has_short_way=has_short_way)
        send(relay, 1, control(ACK, 11, 22), data(11, 22, 101))
        send(relay, 1, control(PacketType.ABORT, 11, 22, bytes(4)))
        ended.append((poll(relay, 2), relay.switch.stats(), accounts(relay)))
    assert ended[0] == ended[1]


def test_a_full_budget_drops_and_names_the_same_packets_on_both_ways() -> None:
    found = []
    for has_short_way in (True, False):
        relay = joined(has_short_way=has_short_way)
        budget = served(relay, 2).mailbox.budget
        budget.hold(budget.hard_bytes - 300)
        relay.switch.link_packets(1, frames_of(control(ACK, 11, 22), data(11, 22, 101)), relay.now)
        budget.release(budget.hard_bytes - 300)
        relay.settle()
        found.append((poll(relay, 2), poll(relay, 1), relay.switch.stats(), accounts(relay)))
    assert found[0] == found[1]
    assert found[0][0] == [(ACK, 0)]
    assert [kind for kind, _ in found[0][1]] == [PacketType.DROPPED]


class Walk:
    """A relay with two users who have a route each to one exit, and random steps that depend on the seed alone."""

    def __init__(self, seed: int, *, has_short_way: bool) -> None:
        self.relay = Relay(has_short_way=has_short_way, mailbox_bytes_max=300_000, exit_mailbox_bytes_max=300_000)
        self.random = Random(seed)
        self.ann, self.exit = client_and_exit(self.relay)
        bind(self.ann, self.exit, 11, 22)
        self.bob = Peer(self.relay, "bob", 9).attached()
        bind(self.bob, self.exit, 33, 44)
        self.peers = {1: self.ann, 2: self.exit, 3: self.bob}
        self.routes = {1: [(11, 22)], 2: [(22, 11), (44, 33)], 3: [(33, 44)]}
        self.next = {11: 101, 22: 501, 33: 101, 44: 501}
        self.unreceipted = {1: 0, 2: 0, 3: 0}
        self.links = 3
        for link, peer in self.peers.items():
            linked(self.relay, peer, link)

    def step(self) -> object:
        random, relay = self.random, self.relay
        link = random.choice(list(self.peers))
        kind = random.choice("ssssppprcv")
        relay.now += random.randrange(2000)
        if kind == "s":
            send(relay, link, *self.batch(link))
        elif kind == "p":
            found = poll(relay, link, random.choice((100, 1000, 1 << 16, 1 << 16)))
            self.unreceipted[link] += bool(found)
            return found
        elif kind == "r" and self.unreceipted[link]:
            relay.switch.link_receipted(link, self.unreceipted[link], relay.now)
            self.unreceipted[link] = 0
        elif kind == "c" and random.random() < 0.2:
            self.reopen(link)
        elif kind == "v" and random.random() < 0.3:
            return [(packet.type, packet.sequence) for packet in self.peers[link].push()]
        relay.settle()
        return None

    def batch(self, link: int) -> list[Packet]:
        """Usually an ACK, DATA or both; sometimes of a wrong order, late, twice, large, or two routes."""
        random = self.random
        packets: list[Packet] = []
        for _ in range(random.choice((1, 1, 1, 1, 2))):
            source, destination = random.choice(self.routes[link])
            if random.random() < 0.5:
                packets.append(control(random.choice((ACK, ACK, ACK, PING)), source, destination))
            if random.random() < 0.7:
                late = random.choice((0, 0, 0, 0, 0, 1, 5))
                size = random.choice((10, 100, 1000, 1000, 3000, 20_000))
                packets.append(data(source, destination, self.next[source] - late, bytes(size), attempt=bool(late)))
                self.next[source] += random.choice((1, 1, 1, 1, 1, 2)) if not late else 0
        return packets

    def reopen(self, link: int) -> None:
        self.relay.switch.link_closed(link, self.relay.now)
        self.links += 1
        linked(self.relay, self.peers[link], self.links)
        self.peers[self.links] = self.peers.pop(link)
        self.routes[self.links] = self.routes.pop(link)
        self.unreceipted[self.links] = 0
        del self.unreceipted[link]

    def state(self) -> object:
        return self.relay.switch.stats(), accounts(self.relay), self.relay.links_ready, self.relay.switch.next_timeout()


@pytest.mark.parametrize("seed", [*range(8), 121])
def test_two_users_pay_the_same_on_both_ways_after_each_step(seed: int) -> None:
    short, general = (Walk(seed, has_short_way=has_short_way) for has_short_way in (True, False))
    parcels = 0
    for _ in range(300):
        assert short.step() == general.step()
        assert short.state() == general.state()
        parcels += any(parcel(short.relay, link) for link in short.peers)
    assert parcels > 10


def test_two_users_a_parcel_of_one_is_charged_to_the_payer_of_the_route_alone() -> None:
    relay = joined()
    bob = Peer(relay, "bob", 9).attached()
    linked(relay, bob, 3)
    send(relay, 2, control(ACK, 22, 11), data(22, 11, 501))
    assert len(parcel(relay, 1)) == 2
    held = {name: values[0] for name, values in accounts(relay).items()}
    assert held["ann"] == sum(len(frame.data) + 256 for frame in parcel(relay, 1))
    assert held["bob"] == 0


def test_two_users_a_parcel_of_one_leaves_in_turn_with_the_packets_of_the_other() -> None:
    """What comes after a parcel unpacks it, so that the scheduler shares the batch as ever."""
    taken = []
    for has_short_way in (True, False):
        relay = Relay(has_short_way=has_short_way)
        ann, exit_ = client_and_exit(relay)
        bind(ann, exit_, 11, 22)
        bob = Peer(relay, "bob", 9).attached()
        bind(bob, exit_, 33, 44)
        for link, peer in enumerate((ann, exit_, bob), 1):
            linked(relay, peer, link)
        send(relay, 1, data(11, 22, 101, bytes(3000)))
        send(relay, 3, control(ACK, 33, 44), *(data(33, 44, 101 + number, bytes(3000)) for number in range(4)))
        found = relay.switch.poll_link(2, 8000, relay.now)
        taken.append([(frame.source, frame.type, frame.sequence) for frame in found])
    assert taken[0] == taken[1]
    assert {source for source, *_ in taken[0]} == {11, 33}
