"""What leaves a connection: openings, answers, control packets, segments."""

import pytest

from tests.core.solo import MS, PEER, SERVICE, TARGET, Solo
from tunnel.core import EndpointConfig, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import (
    Dropped,
    DropReason,
    Options,
    PacketType,
    RejectReason,
    decode_accepted,
    decode_connect,
    decode_rejected,
    encode_dropped,
)

ACCEPTED, ACK, CONNECT, DATA = PacketType.ACCEPTED, PacketType.ACK, PacketType.CONNECT, PacketType.DATA
PING, PONG, PROBE = PacketType.PING, PacketType.PONG, PacketType.PROBE
NO_ROUTE = encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0))


def test_connect_is_repeated_after_one_two_four_seconds_each_with_the_next_attempt() -> None:  # 3.1
    solo = Solo(EndpointConfig(user_timeout_us=600 * SECOND_US)).connect()
    gaps = []
    for attempt in range(1, 9):
        before = solo.now
        while not solo.endpoint.wants_batch():
            solo.wait((solo.endpoint.next_timeout() or 0) - solo.now)
        (packet,) = solo.out()
        assert (packet.type, packet.attempt) == (CONNECT, attempt)
        gaps.append((solo.now - before) // SECOND_US)
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
    solo.answer()
    assert solo.types() == [ACK]  # at once (3.5)
    assert solo.connection.state is State.OPEN


def test_at_a_relay_that_did_not_know_us_connect_comes_each_half_second_at_first() -> None:  # 3.1, 6.5
    solo = Solo(EndpointConfig(user_timeout_us=600 * SECOND_US)).connect()
    for seconds in (1, 2, 4, 8):
        solo.wait(seconds * SECOND_US)
        assert solo.types() == [CONNECT]
    solo.endpoint.attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.types() == [CONNECT]
    for wait_us in [SECOND_US // 2] * 10 + [SECOND_US, 2 * SECOND_US, 4 * SECOND_US]:
        solo.wait(wait_us - 1)
        assert solo.types() == []
        solo.wait(1)
        assert solo.types() == [CONNECT]


def test_resume_is_asked_for_every_second() -> None:  # 6.5
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    for attempt in range(1, 6):
        (packet,) = solo.out()
        connect = decode_connect(packet.payload)
        assert connect is not None
        assert connect.resume
        assert (packet.destination, packet.attempt) == (PEER, attempt)
        solo.wait(SECOND_US)
    solo.answer(resumed=True)
    assert solo.types() == [ACK]  # 6.6; the CONNECT that was due is not


def test_control_packets_leave_together_with_the_ack_that_waits() -> None:
    solo = Solo().opened()
    solo.wait(10 * MS)  # since the last ACK
    solo.data(0)
    assert not solo.endpoint.wants_batch()
    solo.say(PING, b"a")
    solo.say(PING, b"b")
    packets = solo.out()
    assert [packet.type for packet in packets] == [ACK, PONG, PONG]
    assert [bytes(packet.payload) for packet in packets[1:]] == [b"a", b"b"]
    assert all((packet.source, packet.destination) == (solo.connection.id, PEER) for packet in packets)
    assert solo.out() == []


def test_ping_and_probe() -> None:  # 4.12, 4.16
    solo = Solo().opened()
    solo.ack(window=0)
    connection = solo.connection
    connection.sender.window.peer_edge = 0
    connection.write(b"x", solo.now)
    solo.wait(SECOND_US)
    assert solo.types() == [PROBE]
    solo.ack(window=0)
    connection.liveness._ping_due = connection.liveness.packet_due = True
    solo.endpoint.touch(connection)
    assert solo.types() == [PING]
    assert not connection.liveness.packet_due


def test_nothing_but_openings_leaves_while_the_route_is_gone() -> None:  # 6.5
    solo = Solo().served()
    solo.data(1)
    solo.say(PING, b"a")
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    assert solo.out() == []
    assert not solo.endpoint.wants_batch()
    solo.request(resume=True, destination=solo.connection.id)
    assert solo.types() == [ACCEPTED, ACK, PONG]


def test_a_request_that_is_not_answered_says_nothing() -> None:
    solo = Solo()
    solo.request()
    solo.data(0)
    solo.say(PING, b"a")
    assert solo.out() == []
    solo.endpoint.accept(solo.connection.id, solo.now)
    assert sorted(solo.types()) == [ACCEPTED, ACK, PONG]


def test_an_ended_connection_takes_back_what_it_wanted_to_say() -> None:
    solo = Solo()
    connection = solo.endpoint.connect(TARGET, solo.now)
    connection.abort(solo.now)
    assert solo.out() == []


def test_segments_are_no_larger_than_anybody_takes() -> None:  # 4.13
    solo = Solo().connect()
    solo.answer(Options(packet_bytes_max=5000))
    solo.out()
    solo.connection.write(bytes(20_000), solo.now)
    assert [packet.size for packet in solo.out()] == [5000, 5000, 5000, 5000, 96 + 24]
    solo.endpoint.attached(False, 3000, 1 << 30, solo.now)
    solo.connection.write(bytes(6_000), solo.now)
    assert [packet.size for packet in solo.out()] == [3000, 3000, 48 + 24]


def test_a_repeated_connect_is_answered_even_when_accepted_is_acknowledged() -> None:  # 3.3
    solo = Solo().served()
    solo.request()
    (packet,) = solo.out()
    accepted = decode_accepted(packet.payload)
    assert (packet.type, packet.attempt) == (ACCEPTED, 1)
    assert accepted is not None
    assert not accepted.resumed


def test_accepted_goes_before_everything_that_needs_the_route() -> None:  # 3.2
    solo = Solo()
    solo.request()
    solo.data(0)
    solo.endpoint.accept(solo.connection.id, solo.now)
    solo.connection.write(b"first", solo.now)
    assert solo.types() == [ACCEPTED, ACK, DATA]
    assert not solo.connection.handshake.accepted_waits()
    initiator = Solo().opened()
    assert not initiator.connection.handshake.accepted_waits()


@pytest.mark.parametrize("refused", [True, False])
def test_the_last_answer(refused: bool) -> None:  # 3.3
    solo = Solo()
    solo.request()
    if refused:
        solo.endpoint.refuse(solo.connection.id, RejectReason.UNREACHABLE, "no way", solo.now)
        (packet,) = solo.out()
        assert (packet.type, packet.source, packet.destination) == (PacketType.REJECTED, PEER, 0)
        payload = packet.payload
    else:
        payload = solo.connection.handshake.last_answer()
    rejected = decode_rejected(payload)
    assert rejected is not None
    assert (rejected.reason, rejected.text) == (
        (RejectReason.UNREACHABLE, "no way") if refused else (RejectReason.GONE, "")
    )


def test_early_packets_are_as_small_as_any_peer_takes() -> None:  # 4.13, 3.6
    solo = Solo().connect()
    solo.connection.write(bytes(3000), solo.now)
    assert [len(packet.payload) for packet in solo.out()] == [1024, 1024, 952]


@pytest.mark.parametrize("answered", [False, True])
def test_connect_that_was_given_up_leaves_again(answered: bool) -> None:  # 4.10
    solo = Solo().connect()
    if answered:
        solo.answer()
        solo.out()
    assert solo.connection.handshake.open_again() == (not answered)
    solo.endpoint.touch(solo.connection)
    assert solo.types() == ([] if answered else [CONNECT])


def test_the_delay_of_an_ack_is_not_asked_for() -> None:  # 4.3
    solo = Solo().opened()
    solo.data(0)
    assert not solo.connection.outbound.wants_control()
    solo.wait(25 * MS)
    assert solo.connection.outbound.wants_control()
    assert solo.acked().delay_us == 25 * MS


def test_a_resume_after_a_good_end_hears_of_it() -> None:  # 5.7
    solo = Solo().served()
    solo.connection.closing.start_drain(solo.now)
    rejected = decode_rejected(solo.connection.handshake.last_answer())
    assert rejected is not None
    assert rejected.reason == RejectReason.FINISHED


def test_control_packets_have_no_number_and_pings_and_probes_no_payload() -> None:  # 1.6
    solo = Solo().connect()
    solo.answer(window=0)
    solo.out()
    solo.connection.write(b"x", solo.now)
    solo.wait(61 * SECOND_US)
    packets = {packet.type: packet for packet in solo.out()}
    for packet_type in (PacketType.PING, PacketType.PROBE):
        packet = packets[packet_type]
        assert (packet.source, packet.destination, packet.sequence) == (solo.connection.id, PEER, 0)
        assert bytes(packet.payload) == b""


def test_every_repeated_answer_is_another_attempt_and_leaves_once() -> None:  # 3.3, 1.8
    solo = Solo().served()
    attempts = []
    for _ in range(3):
        solo.request(SERVICE)
        (packet,) = [packet for packet in solo.out() if packet.type == PacketType.ACCEPTED]
        attempts.append(packet.attempt)
        solo.say(PacketType.PROBE)
        assert solo.types() == [PacketType.ACK]
    assert attempts == [1, 2, 3]


def test_without_a_route_nothing_asks_to_leave() -> None:  # 6.5
    solo = Solo().served()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.connection.receiver.owe_ack(solo.now)
    solo.endpoint.touch(solo.connection)
    assert not solo.endpoint.wants_batch()


def test_who_comes_after_the_end_is_told_that_it_was_one_and_nothing_else() -> None:  # 5.7
    solo = Solo().served()
    solo.end(0)
    solo.out()
    solo.say(PacketType.SHUTDOWN)
    assert solo.in_state(State.CLOSED)
    solo.out()
    solo.request(SERVICE, resume=True, destination=solo.connection.id)
    (packet,) = solo.out()
    rejected = decode_rejected(packet.payload)
    assert rejected is not None
    assert (rejected.reason, rejected.text) == (RejectReason.FINISHED, "")
