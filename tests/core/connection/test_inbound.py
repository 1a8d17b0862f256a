"""The effect of each type of packet, and which packets are discarded (PROTOCOL 3.7, 3.8)."""

import pytest

from tests.core.solo import PEER, Solo
from tunnel.core import Connected, EndpointConfig, Lost, LostReason, Readable, Refused, State
from tunnel.wire import (
    Abort,
    AbortReason,
    Accepted,
    Ack,
    Dropped,
    DropReason,
    Edge,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    decode_abort,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_dropped,
    encode_edge,
    encode_rejected,
    wrap,
)

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
JUNK = b"\xff" * 7


def dropped(reason: int, first: int = 0, last: int = 0, limit: int = 0) -> bytes:
    return encode_dropped(Dropped(reason, first, last, limit))


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


@pytest.mark.parametrize("packet_type", sorted(set(PacketType) - {PacketType.CONNECT, PacketType.LISTEN_STATE}))
def test_malformed_packets_are_counted(packet_type: PacketType) -> None:  # 2.0
    solo = Solo().opened()
    if packet_type in (PacketType.DROPPED, PacketType.EDGE, PacketType.REJECTED):
        solo.relay(packet_type, JUNK)
    elif packet_type == PacketType.ACCEPTED:
        solo.receive(Packet(packet_type, solo.connection.id, PEER, 0, JUNK))
    else:
        solo.say(packet_type, JUNK * 10, number=0)
    meaningless = {DATA, PacketType.SHUTDOWN, PacketType.NOOP, PacketType.PING, PacketType.PONG, PacketType.PROBE}
    expected = 0 if packet_type in meaningless else 1
    assert solo.connection.stats.packets_discarded + solo.endpoint.packets_discarded == expected


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


def test_an_acceptor_discards_answers() -> None:
    solo = Solo().served()
    own = solo.connection.id
    solo.receive(
        Packet(PacketType.ACCEPTED, own, PEER, 0, encode_accepted(Accepted(solo.route_key, False, 1000))),
        Packet(PacketType.REJECTED, own, 0, 0, encode_rejected(Rejected(solo.route_key, RejectReason.GONE))),
    )
    assert solo.connection.stats.packets_discarded == 2
    assert solo.in_state(State.OPEN)


def test_the_answer_of_a_second_acceptor_ends_the_connection_and_is_aborted() -> None:
    solo = Solo().opened()
    payload = encode_accepted(Accepted(solo.route_key, False, 1000))
    solo.receive(Packet(PacketType.ACCEPTED, solo.connection.id, PEER + 1, 0, payload))
    assert solo.event(Lost).reason is LostReason.GONE
    (packet,) = solo.out()
    assert (packet.type, packet.destination) == (PacketType.ABORT, PEER + 1)


@pytest.mark.parametrize("reason", [RejectReason.GONE, RejectReason.BUSY])
def test_a_resume_refused_as_gone_ends_the_connection_and_as_busy_does_not(reason: RejectReason) -> None:  # 6.8
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, dropped(DropReason.NO_ROUTE))
    payload = encode_rejected(Rejected(solo.route_key, reason, ""))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, payload))
    assert solo.in_state(State.CLOSED) == (reason == RejectReason.GONE)


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


def test_a_stream_that_does_not_match_its_digest_is_an_error_on_both_sides() -> None:  # 5.1
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.events()
    solo.stream = b"abd"
    solo.end(1, FINISH)
    assert solo.event(Lost) == Lost(solo.connection.id, LostReason.INTEGRITY, "")
    (packet,) = solo.out()
    abort = decode_abort(packet.payload)
    assert abort is not None
    assert abort.reason == AbortReason.INTEGRITY
    assert not solo.connection.at_eof


def test_refused_and_duplicate_packets_change_nothing() -> None:
    config = EndpointConfig(window_bytes_min=10, window_bytes_start=10, window_bytes_max=10)
    solo = Solo(config).opened()
    solo.say(DATA, bytes(11), number=0)
    solo.say(DATA, bytes(10), number=0)
    solo.events()
    solo.say(DATA, bytes(10), number=0)
    stats = solo.connection.stats
    assert (stats.packets_discarded, stats.packets_duplicate, solo.events()) == (1, 1, [])


def test_a_packet_larger_than_our_limit_is_discarded() -> None:  # 1.3
    solo = Solo(EndpointConfig(packet_bytes_max=1048)).opened()
    solo.say(DATA, bytes(1025), number=0)
    assert solo.connection.stats.packets_discarded == 1
    solo.say(DATA, bytes(1024), number=0)
    assert solo.event(Readable) == Readable(solo.connection.id)


def test_an_ack_of_packets_never_sent_is_discarded() -> None:  # 4.4
    solo = Solo().opened()
    ack = Ack(wrap(solo.connection.sender.window.next_sequence), 0, 0, 0, 0)
    solo.say(ACK, encode_ack(ack))
    assert solo.connection.stats.packets_discarded == 1


# control


def test_pings_are_answered_with_their_bytes_up_to_a_limit() -> None:  # 1.5
    solo = Solo().opened()
    solo.say(PacketType.PING, bytes(65))
    assert solo.out() == []
    for number in range(9):
        solo.say(PacketType.PING, bytes([number]) * 64)
    pongs = [packet for packet in solo.out() if packet.type == PacketType.PONG]
    assert [bytes(pong.payload) for pong in pongs] == [bytes([number]) * 64 for number in range(4)]


def test_pong_and_noop_only_show_that_the_peer_is_alive() -> None:
    solo = Solo().opened()
    for packet_type in (PacketType.PONG, PacketType.NOOP):
        solo.now += 1000
        solo.say(packet_type)
        assert solo.connection.liveness.heard_us == solo.now
    assert solo.out() == []


# the relay


def test_the_relays_edge_is_kept() -> None:  # 2.10
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    (packet,) = solo.out()
    solo.relay(PacketType.EDGE, encode_edge(Edge(packet.sequence, 777)))
    assert solo.connection.snapshot().edge_bytes == 777
