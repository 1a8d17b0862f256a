"""The effect of each type of packet, and which packets are discarded (PROTOCOL 3.7, 3.8)."""

import pytest

from tests.core.solo import PEER, Solo
from tunnel.core import Connected, EndpointConfig, Lost, LostReason, Readable, Refused, State
from tunnel.wire import (
    Abort,
    AbortReason,
    Accepted,
    Dropped,
    DropReason,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    encode_abort,
    encode_accepted,
    encode_dropped,
    encode_rejected,
)

DATA = PacketType.DATA
JUNK = b"\xff" * 7


# packets from other peers, packets before ACCEPTED, malformed packets


@pytest.mark.parametrize("packet_type", [*PacketType, 200])
def test_a_packet_from_another_peer_changes_nothing(packet_type: int) -> None:  # 3.8
    solo = Solo().opened()
    stranger = Packet(packet_type, PEER + 1, solo.connection.id, 0, b"")
    solo.receive(stranger)
    assert solo.in_state(State.OPEN)
    assert solo.events() == []
    assert solo.connection.stats.packets_discarded + solo.endpoint.packets_discarded == 1


def test_held_packets_are_bounded_and_do_not_pin_their_bodies() -> None:  # 3.7
    solo = Solo().connect()
    solo.say(DATA, bytes(200_000), number=0)
    solo.say(DATA, bytes(100_000), number=1)
    assert solo.connection.handshake._held_bytes == 200_000
    assert isinstance(solo.connection.handshake._held[0].payload, bytes)
    for number in range(1, 70):
        solo.say(DATA, b"x", number=number)
    assert len(solo.connection.handshake._held) == 64
    assert solo.connection.stats.packets_discarded == 7
    solo.answer()
    assert solo.connection.snapshot().bytes_received == 200_063


def test_held_packets_do_not_reach_a_connection_that_has_ended() -> None:
    solo = Solo().connect()
    solo.say(DATA, b"abc", number=0)
    solo.say(PacketType.ABORT, encode_abort(Abort(AbortReason.GONE, "text")))
    solo.say(DATA, b"def", number=1)
    solo.answer()
    identity = solo.connection.id
    assert solo.events() == [Connected(identity), Readable(identity), Lost(identity, LostReason.GONE, "text")]


# answers to CONNECT


def wrong_answers(solo: Solo) -> list[Packet]:
    own = solo.connection.id
    other = encode_accepted(Accepted(bytes(16), False, 1000))
    right = encode_accepted(Accepted(solo.route_key, False, 1000))
    rejected = encode_rejected(Rejected(bytes(16), RejectReason.GONE))
    return [
        Packet(PacketType.ACCEPTED, own, PEER, 0, JUNK),
        Packet(PacketType.ACCEPTED, own, PEER, 0, other),
        Packet(PacketType.ACCEPTED, own, 0, 0, right),
        Packet(PacketType.REJECTED, own, 0, 0, JUNK),
        Packet(PacketType.REJECTED, own, 0, 0, rejected),
    ]


def test_an_answer_must_echo_the_route_key() -> None:  # 3.8
    solo = Solo().connect()
    solo.receive(*wrong_answers(solo))
    assert solo.in_state(State.CONNECTING)
    assert solo.connection.stats.packets_discarded == 5


def test_a_rejection_for_an_unknown_reason_is_reported_as_refused() -> None:
    solo = Solo().connect()
    payload = encode_rejected(Rejected(solo.route_key, 999, "text"))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, payload))
    assert solo.event(Refused) == Refused(solo.connection.id, RejectReason.REFUSED, "text")
    assert solo.in_state(State.CLOSED)


# the stream


def test_readable_is_reported_once_until_the_data_is_read() -> None:
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.data(1, b"def")
    assert solo.event(Readable) == Readable(solo.connection.id)
    assert solo.connection.read(10, solo.now) == b"abcdef"
    solo.data(2, b"ghi")
    assert isinstance(solo.event(Readable), Readable)


# control


def test_pong_and_noop_only_show_that_the_peer_is_alive() -> None:
    solo = Solo().opened()
    for packet_type in (PacketType.PONG, PacketType.NOOP):
        solo.now += 1000
        solo.say(packet_type)
        assert solo.connection.liveness.heard_us == solo.now
    assert solo.out() == []


def test_every_received_packet_is_counted_once() -> None:
    solo = Solo().opened()
    before = solo.connection.stats.packets_received
    for number in range(3):
        solo.data(number)
    assert solo.connection.stats.packets_received == before + 3


def test_every_discarded_packet_is_counted() -> None:  # 3.8, 1.3
    solo = Solo(EndpointConfig(packet_bytes_max=2000)).opened()
    stats, own = solo.connection.stats, solo.connection.id
    for _ in range(2):
        solo.receive(Packet(DATA, PEER + 1, own, 0, b"stranger"))
        solo.receive(Packet(99, PEER, own, 0, b"unknown"))
        solo.say(DATA, bytes(2000), number=0)
    assert stats.packets_discarded == 6
    assert stats.bytes_received == 0


def test_a_close_that_is_refused_closes_nothing() -> None:  # 4.3: there was no room for it
    solo = Solo(EndpointConfig(out_of_order_packets_max=1)).opened()
    solo.data(5)
    solo.end(9)
    assert solo.in_state(State.OPEN)


def test_a_route_that_the_peer_releases_too_early_is_named_as_the_cause() -> None:  # 5.7
    solo = Solo().opened()
    solo.say(PacketType.SHUTDOWN)
    assert solo.event(Lost) == Lost(solo.connection.id, LostReason.RESET, "the peer released the route before the end")


def test_a_packet_that_is_too_large_for_the_relay_is_named_as_the_cause() -> None:  # 2.9
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, encode_dropped(Dropped(DropReason.TOO_LARGE, 0, 0, 0)))
    assert solo.event(Lost) == Lost(solo.connection.id, LostReason.PROTOCOL, "a packet was too large for the relay")
