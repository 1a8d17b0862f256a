"""Packets of any type with any fields, in any state: nothing raises, nothing leaks, and no stream ends cleanly without
its last byte (5.9)."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from tests.core.connection.rig import REACH
from tests.core.solo import PEER, SERVICE, TARGET, Solo
from tests.wire.strategies import aborts, accepteds, acks, connects, droppeds, edges, ends, junk, option_payloads
from tunnel.core import EndpointConfig, PeerFinished
from tunnel.core.connection.state import State
from tunnel.wire import (
    Accepted,
    Ack,
    Connect,
    End,
    Packet,
    PacketType,
    Rejected,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_option,
    encode_rejected,
    wrap,
)

CONFIG = EndpointConfig(
    exit=True, window_bytes_min=500, window_bytes_start=500, window_bytes_max=2000, out_of_order_packets_max=20
)
TYPES = st.sampled_from([*PacketType, 0, 8, 200])
NEAR = st.integers(-3, 6)  # distance from the endpoint's own numbers, so small that a number may be valid
PAYLOADS = st.one_of(
    junk,
    acks.map(encode_ack),
    aborts.map(encode_abort),
    accepteds.map(encode_accepted),
    connects.map(encode_connect),
    droppeds.map(encode_dropped),
    edges.map(encode_edge),
    ends.map(encode_end),
    option_payloads.map(encode_option),
    st.binary(min_size=1, max_size=600),
)


class Enemy:
    """A hostile peer that knows ids, numbers and the route key, and sends false packets."""

    def __init__(self, state: State, draw: st.DataObject) -> None:
        self.solo = Solo(CONFIG)
        REACH[state](self.solo)
        self.solo.endpoint.listen("s", 3, self.solo.now)
        self.draw = draw
        self.true_stream = bytearray()

    def number(self, near: int) -> int:
        return wrap(near + self.draw.draw(NEAR))

    def payload(self, packet_type: int) -> bytes:
        """Return junk, or a well-formed payload whose numbers are nearly right."""
        if not self.draw.draw(st.booleans()):
            return bytes(self.draw.draw(PAYLOADS))
        connection = self.solo.connection
        sending, receiving = connection.sender.window, connection.receiver.window
        first, last = self.number(sending.oldest), self.number(sending.next_sequence)
        if packet_type == PacketType.ACK:
            ranges = [(wrap(first + 2), wrap(first + 2 + step)) for step in self.draw.draw(st.lists(NEAR, max_size=3))]
            window = self.draw.draw(st.sampled_from([0, 1, 500, 2**32 - 1]))
            return encode_ack(Ack(first, window, 0, last, self.draw.draw(st.integers(0, 255)), ranges))
        if packet_type in (PacketType.FINISH, PacketType.CLOSE):
            digest = xxh3_128(self.draw.draw(st.binary(max_size=1))).digest()
            length = max(0, receiving.received_offset + self.draw.draw(NEAR))
            return encode_end(End(length, digest, self.draw.draw(st.sampled_from([None, first, last]))))
        key = connection.identity.route_key
        options = self.draw.draw(option_payloads).options
        if packet_type == PacketType.ACCEPTED:
            window = self.draw.draw(st.integers(0, 900))
            return encode_accepted(Accepted(key, self.draw.draw(st.booleans()), window, options))
        if packet_type == PacketType.REJECTED:
            return encode_rejected(Rejected(key, self.draw.draw(st.integers(0, 14)), "text", options))
        if packet_type == PacketType.CONNECT:
            target = self.draw.draw(st.sampled_from([SERVICE, TARGET]))
            return encode_connect(Connect(key, self.draw.draw(st.booleans()), target, 1000, options))
        return bytes(self.draw.draw(PAYLOADS))

    def packet(self) -> Packet:
        connection = self.solo.connection
        packet_type = self.draw.draw(TYPES)
        peer = self.draw.draw(st.sampled_from([PEER, connection.identity.peer_id, 0, 5]))
        own = self.draw.draw(st.sampled_from([connection.id, connection.id, connection.id, 0, 6]))
        source, destination = (own, peer) if packet_type in (PacketType.ACCEPTED, PacketType.REJECTED) else (peer, own)
        sequence = self.number(connection.receiver.window.next_sequence)
        attempt = self.draw.draw(st.integers(0, 255))
        version = self.draw.draw(st.sampled_from([1, 1, 1, 1, 1, 2]))
        return Packet(packet_type, source, destination, sequence, self.payload(packet_type), attempt, version)


@given(st.sampled_from(State), st.data())
def test_nothing_raises_and_nothing_is_kept_beyond_its_limit(state: State, draw: st.DataObject) -> None:
    enemy = Enemy(state, draw)
    solo = enemy.solo
    for _ in range(draw.draw(st.integers(1, 12))):
        solo.receive(*[enemy.packet() for _ in range(draw.draw(st.integers(1, 3)))])
        for connection in list(solo.endpoint.connections.values()):
            window = connection.receiver.window
            assert window.pinned_bytes >= 0
            assert window.buffered_bytes + window._ahead_bytes <= 64 * 1024 + 2000
            assert len(connection.liveness._pongs) <= 4
            connection.read(draw.draw(st.sampled_from([0, 1, 1000])), solo.now)
        if draw.draw(st.booleans()):
            solo.out(ok=draw.draw(st.booleans()))
        if draw.draw(st.booleans()):
            solo.wait(draw.draw(st.sampled_from([1000, 25_000, 1_000_000, 70_000_000])))
        assert solo.endpoint.budget.granted_bytes >= 0
    for connection in list(solo.endpoint.connections.values()):
        connection.abort(solo.now)
    solo.wait(400_000_000)
    solo.out()
    left = [connection.state for connection in solo.endpoint.connections.values()]
    assert all(state is State.DRAIN for state in left)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_no_stream_ends_cleanly_without_its_last_byte(stream: bytes, draw: st.DataObject) -> None:  # 5.9
    """The peer truncates, repeats, reorders and changes its stream, but knows the digest of the whole stream."""
    random = Random(draw.draw(st.integers(0, 2**32)))
    solo = Solo(CONFIG).opened()
    whole = End(len(stream), xxh3_128(stream).digest())
    pieces = [stream[index : index + 7] for index in range(0, len(stream), 7)]
    packets = [solo.packet(PacketType.DATA, piece, number=number) for number, piece in enumerate(pieces)]
    for number in range(len(pieces) + 1):
        for packet_type in (PacketType.FINISH, PacketType.CLOSE):
            packets.append(solo.packet(packet_type, encode_end(whole), number=number))
    changed = bytes([stream[0] ^ 1]) + stream[1:7]
    packets.append(solo.packet(PacketType.DATA, changed, number=0))
    packets.append(solo.packet(PacketType.DATA, b"more", number=len(pieces)))
    packets.append(solo.packet(PacketType.SHUTDOWN))
    got = b""
    for _ in range(30):
        index = random.getrandbits(16) % len(packets)
        solo.receive(packets[index])
        got += bytes(solo.connection.read(1 + random.getrandbits(4), solo.now))
        if solo.connection.at_eof:
            assert got == stream
    finished = [event for event in solo.events() if isinstance(event, PeerFinished)]
    assert len(finished) == int(solo.connection.at_eof) <= 1


@given(st.data())
def test_a_storm_of_connects_stays_within_connections_max(draw: st.DataObject) -> None:
    config = EndpointConfig(exit=True, connections_max=5, budget_bytes=1_000_000)
    solo = Solo(config)
    solo.endpoint.listen("s", 3, solo.now)
    for _ in range(40):
        solo.route_key = bytes([draw.draw(st.integers(0, 9))]) * 16
        target = draw.draw(st.sampled_from([SERVICE, TARGET]))
        solo.request(target, resume=draw.draw(st.booleans()), source=draw.draw(st.integers(1, 4)))
        if draw.draw(st.booleans()):
            solo.out()
        assert len(solo.endpoint.connections) <= 5
        assert solo.endpoint.budget.granted_bytes <= 1_000_000
