"""No handed CONNECT is forgotten: each is answered or released within a second, unless the acceptor's application has
not decided (PROTOCOL 3.2). Otherwise a user could fill the backlog of a service for free."""

from __future__ import annotations

from random import Random

import pytest

from tests.encryption.rig import CONTEXT, key
from tests.servlet.support import REPORTS, SECOND, Peer, Relay, connect, kinds, read_rejected
from tunnel.core import Connection, ConnectRequested, Endpoint, EndpointConfig
from tunnel.encryption.connection import EncryptedConnection
from tunnel.encryption.tls import TlsSession
from tunnel.wire import AbortReason, Packet, PacketType, RejectReason

BACKLOG = 16
STEPS = 25


class Acceptor:
    """An endpoint behind the switch, with a service whose application decides in each of the ways that there are."""

    def __init__(self, relay: Relay, random: Random | None = None) -> None:
        self.relay = relay
        self.random = random or Random(1)
        self.peer = Peer(relay, "server", 2).attached()
        self.endpoint = Endpoint(EndpointConfig(asks_services=True), Random(2), endpoint_id=self.peer.identity)
        self.endpoint.on_attached(True, 1 << 24, 1 << 30, relay.now)
        self.endpoint.listen("reports", BACKLOG, relay.now)
        self.deciding: dict[int, bytes] = {}  # by the connection's id: the offer
        self.accepted: dict[int, Connection] = {}
        self.ways = [self.think, self.refuse, self.accept, self.encrypt, self.abort, self.accept_and_abort]
        self.ways += [self.accept_and_close, self.accept_and_abort_later, self.encrypt]
        self.pump()

    # what an application does with a request

    def think(self, number: int, offer: bytes) -> None:
        self.deciding[number] = offer

    def refuse(self, number: int, offer: bytes) -> None:
        self.endpoint.refuse(number, RejectReason.REFUSED, "no", self.relay.now)

    def accept(self, number: int, offer: bytes) -> None:
        self.endpoint.accept(number, self.relay.now)

    def encrypt(self, number: int, offer: bytes) -> None:
        connection = self.endpoint.connections[number]
        self.endpoint.accept(number, self.relay.now, encrypted=True)
        tls = TlsSession(key().context, server_side=True)
        EncryptedConnection(connection, tls).begin(offer, self.relay.now)

    def abort(self, number: int, offer: bytes) -> None:
        self.endpoint.connections[number].abort(self.relay.now, AbortReason.APPLICATION, "stopped")

    def accept_and_abort(self, number: int, offer: bytes) -> None:
        self.accept(number, offer)
        self.abort(number, offer)

    def accept_and_close(self, number: int, offer: bytes) -> None:
        connection = self.endpoint.connections[number]
        self.accept(number, offer)
        connection.close(self.relay.now)

    def accept_and_abort_later(self, number: int, offer: bytes) -> None:
        self.accepted[number] = self.endpoint.connections[number]
        self.accept(number, offer)

    # driving

    def decide(self, share: float) -> None:
        """Let the application decide about some of those that it has thought about."""
        for number, offer in list(self.deciding.items()):
            if self.random.random() < share:
                del self.deciding[number]
                self.random.choice(self.ways[1:])(number, offer)

    def pump(self) -> None:
        """Exchange packets with the relay until nothing moves."""
        while True:
            batch = self.endpoint.next_batch(64 * 1024, self.relay.now) if self.endpoint.wants_batch() else None
            came = self.peer.push(*(batch.packets if batch is not None else ()))
            if batch is not None:
                self.endpoint.batch_done(batch.token, True, self.relay.now)
            self.endpoint.receive_packets(came, self.relay.now)
            while (event := self.endpoint.poll_event()) is not None:
                if isinstance(event, ConnectRequested) and event.connection_id in self.endpoint.connections:
                    self.random.choice(self.ways)(event.connection_id, event.offer)
            if batch is None and not came:
                return

    def run(self, microseconds: int) -> None:
        end = self.relay.now + microseconds
        while self.relay.now < end:
            self.relay.advance(SECOND // 10)
            for connection in self.accepted.values():
                connection.abort(self.relay.now, AbortReason.APPLICATION, "stopped")
            self.accepted.clear()
            self.endpoint.handle_timeout(self.relay.now)
            self.pump()


def hello() -> bytes:
    return TlsSession(CONTEXT, server_side=False).start()


def strange_version(packet: Packet) -> Packet:
    packet.version = 7
    return packet


def request(random: Random, source: int, hellos: list[bytes]) -> Packet:
    """Return a CONNECT as an attacker makes it."""
    kind = random.randrange(8)
    if kind == 0:
        return connect(source, target=REPORTS)
    if kind == 1:
        return connect(source, target=REPORTS, encryption=random.choice(hellos))
    if kind == 2:
        return connect(source, target=REPORTS, encryption=random.choice(hellos)[: random.randrange(1, 200)])
    if kind == 3:
        return connect(source, target=REPORTS, versions=(2, 9))
    if kind == 4:
        return strange_version(connect(source, target=REPORTS))
    if kind == 5:
        return connect(source, target=REPORTS, route_key=bytes([random.randrange(4)]) * 16)
    return connect(source, target=REPORTS, encryption=random.randbytes(random.randrange(1, 150)))


@pytest.mark.parametrize("seed", range(20))
def test_3_2_a_handed_connect_is_answered_or_released_unless_the_application_is_deciding(seed: int) -> None:
    random = Random(seed)
    hellos = [hello() for _ in range(3)]
    relay = Relay(routes_per_attachment_max=1000, routes_max=1000, routes_per_user_max=1000)
    acceptor = Acceptor(relay, random)
    attackers = [Peer(relay, user, 10 + number).attached() for number, user in enumerate(("bob", "eve"))]
    source = 0
    for _ in range(STEPS):
        attacker = random.choice(attackers)
        batch = [request(random, source + number + 1, hellos) for number in range(random.randrange(6))]
        source += len(batch)
        attacker.push(*batch, *(batch if random.random() < 0.2 else ()))
        acceptor.pump()
        acceptor.decide(0.3)
        acceptor.run(SECOND)
        assert relay.switch.stats().routes_pending == len(acceptor.deciding)
    acceptor.decide(1)
    acceptor.run(SECOND)
    assert relay.switch.stats().routes_pending == relay.switch.stats().routes_waiting == 0


def test_3_2_every_one_of_many_refusals_leaves_although_none_left_before() -> None:
    """An attacker does not repeat its CONNECTs, so nothing would ask for an answer that was dropped."""
    endpoint = Endpoint(EndpointConfig(), Random(2))
    endpoint.on_attached(True, 1 << 24, 1 << 30, 0)
    endpoint.receive_packets([connect(source, target=REPORTS) for source in range(1, 3001)], 0)
    answered = set[int]()
    while (batch := endpoint.next_batch(64 * 1024, 0)) is not None:
        assert set(kinds(batch.packets)) == {"REJECTED"}
        answered.update(packet.source for packet in batch.packets)
    assert answered == set(range(1, 3001))


def test_3_4_a_connect_in_another_version_of_packets_is_refused() -> None:
    relay = Relay()
    acceptor, eve = Acceptor(relay), Peer(relay, "eve", 10).attached()
    assert eve.push(strange_version(connect(1, target=REPORTS))) == []
    acceptor.pump()
    (answer,) = eve.push()
    assert read_rejected(answer).reason == RejectReason.VERSION


def test_3_2_the_initiator_learns_why_its_clienthello_was_refused() -> None:
    relay = Relay()
    acceptor, eve = Acceptor(relay), Peer(relay, "eve", 10).attached()
    acceptor.ways = [acceptor.encrypt]
    eve.push(connect(1, target=REPORTS, encryption=b"noise"))
    acceptor.pump()
    (answer,) = eve.push()
    found = read_rejected(answer)
    assert found.reason == RejectReason.MALFORMED
    assert "altered on the way" in found.text


def test_3_2_an_acceptance_that_was_on_its_way_is_ended_on_both_roads() -> None:
    """Whether ACCEPTED has bound the route or was lost, the initiator gets one end, and the relay forgets the route."""
    relay = Relay()
    acceptor, eve = Acceptor(relay), Peer(relay, "eve", 10).attached()
    acceptor.ways = [acceptor.accept_and_abort_later]
    eve.push(connect(1, target=REPORTS))
    acceptor.pump()
    acceptor.run(SECOND // 10)
    assert sorted(kinds(eve.push())) == ["ABORT", "ACCEPTED", "REJECTED"]
    assert relay.switch.stats().routes_pending == relay.switch.stats().routes_bound == 0
    eve.push(connect(2, target=REPORTS))
    acceptor.endpoint.receive_packets(acceptor.peer.push(), relay.now)
    (connection,) = acceptor.endpoint.connections.values()
    acceptor.endpoint.accept(connection.id, relay.now)
    batch = acceptor.endpoint.next_batch(64 * 1024, relay.now)
    assert batch is not None
    assert kinds(batch.packets) == ["ACCEPTED"]  # and it is lost
    connection.abort(relay.now)
    acceptor.pump()
    assert [PacketType(packet.type) for packet in eve.push()] == [PacketType.REJECTED]
