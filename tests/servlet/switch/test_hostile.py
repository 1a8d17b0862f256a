"""Hostile input: no exception, no packet on another route, bounded memory, and nothing left behind."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servlet.support import (
    DATABASE,
    REPORTS,
    SECOND,
    Peer,
    Relay,
    accepted,
    bound,
    connect,
    control,
    data,
    key,
    listen_state,
    option,
    rejected,
)
from tunnel.wire import Packet, PacketType, Status, encode_packets, parse_frames, parse_packets

TIGHT: dict[str, Any] = {
    "process_bytes_max": 512 << 10,
    "user_bytes_max": 320 << 10,
    "mailbox_bytes_max": 160 << 10,
    "exit_mailbox_bytes_max": 256 << 10,
    "reserved_bytes": 4 << 10,
    "route_bytes_max": 64 << 10,
    "initial_edge_bytes": 16 << 10,
    "control_bytes_max": 2 << 10,
    "routes_per_attachment_max": 12,
    "pending_timeout_us": 2 * SECOND,
    "park_us": 1 * SECOND,
    "linger_us": 2 * SECOND,
    "packet_bytes_max": 50_000,
    "lingering_per_attachment_max": 3,
    "notices_max": 8,
    "general_packets_max": 16,
    "lanes_max": 3,
    "links_per_attachment_max": 2,
    "unreceipted_bytes_max": 32 << 10,
    "quantum_bytes": 4 << 10,
}
IDS = [0, 1, 2, 3, 4]
TYPES = [*map(int, PacketType), 0, 8, 77]


class Chaos:
    """Endpoints of three users that send random input, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.relay = Relay(**TIGHT)
        self.peers = [
            Peer(self.relay, "ann", 1),
            Peer(self.relay, "ann", 2, "same"),
            Peer(self.relay, "bob", 3),
            Peer(self.relay, "bob", 4, "exit", is_exit=True),
            Peer(self.relay, "ann", 5, "same"),
            Peer(self.relay, "eve", 1),
        ]
        self.links: dict[int, int] = {}  # the keys are the open links; all values are 0
        self.next_link = 1
        self.pairs: list[tuple[Peer, int, int]] = []  # accepted routes, as seen from each side

    def pick(self, *choices: object) -> object:
        return choices[self.random.getrandbits(16) % len(choices)]

    def number(self, below: int) -> int:
        return self.random.getrandbits(30) % below

    def packet(self) -> Packet:
        source, destination = IDS[self.number(5)], IDS[self.number(5)]
        target = REPORTS if self.number(2) else DATABASE
        endpoint = self.peers[self.number(len(self.peers))].identity
        makers = (
            lambda: connect(source, target=target, route_key=key(self.number(6)), attempt=self.number(256)),
            lambda: connect(
                source, target=target, route_key=key(self.number(6)), resume=True, destination=1, endpoint_id=endpoint
            ),
            lambda: accepted(source, destination, route_key=key(self.number(6)), resumed=bool(self.number(2))),
            lambda: rejected(source, self.number(14), key(self.number(6))),
            lambda: data(source, destination, self.sequence(), bytes(self.number(3000)), self.number(256)),
            lambda: data(source, destination, self.sequence(), bytes(self.number(60_000))),
            lambda: data(source, destination, self.sequence(), b"x"),
            lambda: control(TYPES[self.number(len(TYPES))], source, destination, b"", self.sequence()),
            lambda: Packet(
                TYPES[self.number(len(TYPES))],
                source,
                destination,
                self.sequence(),
                self.random.randbytes(self.number(99)),
            ),
            lambda: listen_state("reports", self.number(3), self.number(9), up=bool(self.number(4))),
            lambda: listen_state(f"name{self.number(99)}", 1, self.number(9)),
            lambda: option(self.number(9), pull_interval_ms=self.number(1 << 32)),
        )
        return makers[self.number(len(makers))]()

    def sequence(self) -> int:
        near = self.number(40)
        return near if self.number(20) else self.random.getrandbits(32)

    def packets(self) -> list[Packet]:
        return [self.packet() for _ in range(self.number(12))]

    def step(self) -> None:
        peer = self.peers[self.number(len(self.peers))]
        if self.number(25) == 0:
            (self.attach, self.pass_time, self.garbage)[self.number(3)](peer)
        else:
            self.relay.advance(self.number(2) * self.number(500_000))
            (self.exchange, self.use_link, self.cooperate, self.flood, self.flood)[self.number(5)](peer)
        self.relay.settle()

    def exchange(self, peer: Peer) -> None:
        lane = self.number(4)
        changes: dict[str, object] = {"pull": bool(self.number(2)), "hold_ms": self.number(5000)}
        changes["answer_bytes_max"] = self.pick(1 << 20, 5000, 150, 0)
        if not self.number(8):
            changes["piece"] = True
            changes["piece_offset"] = self.number(3) * 50
        if not self.number(10):
            changes["serial_received"] = self.number(50)
        if not self.number(10):
            changes["number"] = self.number(30)
        repeats = self.number(4) == 0
        handle = (peer.repeat if repeats else peer.send)(*self.packets(), lane=lane, **changes)
        if not self.number(4):
            self.relay.switch.gone(handle, self.relay.now)
        if handle in self.relay.responses and self.number(3):
            message = self.relay.message(handle)
            if not isinstance(message, Status):
                peer.serials[message.lane] = message.serial

    def cooperate(self, peer: Peer) -> None:
        """Behave correctly for once: open a connection, and accept it."""
        initiator, acceptor = self.peers[self.number(3)], self.peers[3]
        for found in (initiator, acceptor):
            found.numbers.setdefault(2, 0)
            if isinstance(self.relay.message(found.repeat(lane=2)), Status):
                found.attach(generation=found.generation + 1)
        own = 5 + self.number(20)
        initiator.send(connect(own, route_key=key(100 + self.number(1000)), attempt=self.number(3)), lane=2)
        handle = acceptor.send(lane=2)
        message = self.relay.message(handle)
        if isinstance(message, Status) or message.piece:
            return
        for packet in acceptor.packets(handle):
            if packet.type == PacketType.CONNECT and packet.source >= 5:
                theirs = 5 + self.number(20)
                acceptor.send(accepted(packet.source, theirs, route_key=bytes(packet.payload[:16])), lane=2)
                self.pairs += [(initiator, packet.source, theirs), (acceptor, theirs, packet.source)]

    def flood(self, peer: Peer) -> None:
        """Send too much on a route that may exist."""
        if self.pairs:
            peer, source, destination = self.pairs[self.number(len(self.pairs))]
            start, size = self.sequence() % (1 << 31), self.number(9000)
            kinds = (PacketType.FINISH, PacketType.ACK, PacketType.PING, PacketType.SHUTDOWN, PacketType.ABORT, 99)
            packets = [data(source, destination, start + number, bytes(size)) for number in range(self.number(12))]
            for _ in range(self.number(3)):
                kind = kinds[self.number(6) if self.number(20) == 0 else self.number(3)]
                packets.insert(
                    self.number(3), control(kind, source, destination, bytes(self.number(60)), self.sequence())
                )
            peer.send(*packets, lane=self.number(3), pull=True, hold_ms=self.number(2000))

    def attach(self, peer: Peer) -> None:
        peer.attach(generation=peer.generation + self.number(3) - 1 if peer.generation else 1)

    def pass_time(self, peer: Peer) -> None:
        self.relay.advance(self.number(4) ** self.number(9) * 20_000)

    def use_link(self, peer: Peer) -> None:
        switch, now = self.relay.switch, self.relay.now
        if self.number(3) == 0:
            opened = switch.link_opened(self.next_link, peer.user, peer.identity, peer.epoch, peer.generation, now)
            if opened:
                self.links[self.next_link] = 0
            self.next_link += 1
        if not self.links:
            return
        link = list(self.links)[self.number(len(self.links))]
        batch = b"".join(frame.data for frame in switch.poll_link(link, self.number(30_000), now))
        assert parse_packets(batch)[1] is None
        body = b"".join(_encode(packet) for packet in self.packets())
        switch.link_packets(link, parse_frames(body)[0], now)
        switch.link_receipted(link, self.number(3), now)
        if self.number(5) == 0:
            switch.link_closed(link, now)
            del self.links[link]

    def garbage(self, peer: Peer) -> None:
        self.relay.post(peer.user, self.random.randbytes(self.number(200)))


def _encode(packet: Packet) -> bytes:
    return b"".join(encode_packets([packet]))


@pytest.mark.parametrize("seed", range(12))
def test_hostile_input_does_not_corrupt_the_state_of_the_switch(seed: int) -> None:
    chaos = Chaos(seed)
    for peer in chaos.peers[:4]:
        peer.attach()
    for _ in range(250):
        chaos.step()
    for link in chaos.links:
        chaos.relay.switch.link_closed(link, chaos.relay.now)
    # When all attachments have expired, nothing is left: no memory, no routes, no timers.
    chaos.relay.advance(1000 * SECOND)
    stats = chaos.relay.switch.stats()
    assert (stats.attachments, stats.users, stats.routes, stats.listeners, stats.parked_pulls) == (0, 0, 0, 0, 0)
    assert (stats.bytes_held, stats.bytes_reserved, stats.bytes_outstanding, stats.timers) == (0, 0, 0, 0)


def test_the_same_seed_gives_the_same_responses() -> None:
    runs = []
    for _ in range(2):
        chaos = Chaos(99)
        for _ in range(150):
            chaos.step()
        runs.append([(handle, b"".join(found.body)) for handle, found in chaos.relay.responses.items()])
    assert runs[0] == runs[1]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(IDS), st.sampled_from(TYPES)), max_size=20))
def test_9_1_an_attachment_without_routes_reaches_no_endpoint(packets: list[tuple[int, int, int]]) -> None:
    """Of its packets only CONNECT, which the relay stamps with the user, may reach another endpoint."""
    relay = Relay(**TIGHT)
    client, exit_ = bound(relay, 1, 2)
    stranger = Peer(relay, "eve", 9).attached()
    stranger.push(*(Packet(kind, source, destination, 5, b"") for source, destination, kind in packets))
    assert client.push() == exit_.push() == []
    assert client.push(data(1, 2, 101)) == []
    assert [packet.sequence for packet in exit_.push()] == [101]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 8000)), min_size=1, max_size=60))
def test_9_1_packets_arrive_only_on_the_route_they_were_sent_on(sent: list[tuple[int, int, int]]) -> None:
    relay = Relay(**TIGHT)
    client, exit_ = bound(relay, 1, 11)
    for number in (2, 3):
        client.push(connect(number))
        exit_.push()
        exit_.push(accepted(number, 10 + number))
        client.push()
    for number, sequence, size in sent:
        client.push(data(number, 10 + number, 200 + sequence, bytes([number]) * size))
    arrived: list[Packet] = []
    while found := exit_.push():
        arrived += found
    for packet in arrived:
        assert packet.destination == 10 + packet.source
        assert bytes(packet.payload) == bytes([packet.source]) * len(packet.payload)
    copies = [(packet.source, packet.sequence) for packet in arrived]
    assert len(copies) == len(set(copies))
    for source in (1, 2, 3):
        order = [sequence for found, sequence in copies if found == source]
        assert order == sorted(order)


def test_9_2_an_endpoint_that_does_not_read_costs_at_most_its_mailbox() -> None:
    relay = Relay(**TIGHT)
    client, _exit = bound(relay, 1, 2)
    for number in range(400):
        client.push(data(1, 2, 101 + number, bytes(5000)), control(PacketType.PING, 1, 2, bytes(60)))
        client.push(*(control(PacketType.ACK, 1, 2, bytes(20)) for _ in range(20)))
    assert relay.switch.stats().bytes_held <= TIGHT["exit_mailbox_bytes_max"]
