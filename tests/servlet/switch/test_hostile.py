"""Hostile input: no packet on another route, and bounded memory.

The target `switch` of tests/fuzz and the hostile users of the simulator draw what else a user may send.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servlet.support import Peer, Relay, accepted, bound, connect, control, data
from tunnel.wire import Packet, PacketType

TIGHT: dict[str, Any] = {
    "process_bytes_max": 512 << 10,
    "user_bytes_max": 320 << 10,
    "mailbox_bytes_max": 160 << 10,
    "exit_mailbox_bytes_max": 256 << 10,
    "reserved_bytes": 4 << 10,
    "route_bytes_max": 64 << 10,
    "initial_edge_bytes": 16 << 10,
    "control_bytes_max": 2 << 10,
    "packet_bytes_max": 50_000,
    "quantum_bytes": 4 << 10,
}
IDS = [0, 1, 2, 3, 4]
TYPES = [*map(int, PacketType), 0, 8, 77]


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
