"""The packets that leave a connection: CONNECT, answers, control packets, segments."""

from tests.core.solo import MS, NO_ROUTE, PEER, TARGET, Solo
from tunnel.core.constants import SECOND_US
from tunnel.wire import (
    Options,
    PacketType,
)

ACCEPTED, ACK, CONNECT, DATA = PacketType.ACCEPTED, PacketType.ACK, PacketType.CONNECT, PacketType.DATA
PING, PONG, PROBE = PacketType.PING, PacketType.PONG, PacketType.PROBE


def test_control_packets_leave_together_with_a_waiting_ack() -> None:
    solo = Solo().opened()
    solo.wait(10 * MS)  # as long as the spacing of ACKs (4.3)
    solo.data(0)
    assert not solo.endpoint.wants_batch()
    solo.say(PING, b"a")
    solo.say(PING, b"b")
    packets = solo.out()
    assert [packet.type for packet in packets] == [ACK, PONG, PONG]
    assert [bytes(packet.payload) for packet in packets[1:]] == [b"a", b"b"]
    assert all((packet.source, packet.destination) == (solo.connection.id, PEER) for packet in packets)
    assert solo.out() == []


def test_a_probe_or_ping_that_is_due_leaves() -> None:  # 4.12, 4.16
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


def test_only_answers_to_connect_leave_without_a_route() -> None:  # 6.5
    solo = Solo().served()
    solo.data(1)
    solo.say(PING, b"a")
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    assert solo.out() == []
    assert not solo.endpoint.wants_batch()
    solo.request(resume=True, destination=solo.connection.id)
    assert solo.types() == [ACCEPTED, ACK, PONG]


def test_nothing_is_sent_before_a_request_is_answered() -> None:
    solo = Solo()
    solo.request()
    solo.data(0)
    solo.say(PING, b"a")
    assert solo.out() == []
    solo.endpoint.accept(solo.connection.id, solo.now)
    assert sorted(solo.types()) == [ACCEPTED, ACK, PONG]


def test_an_ended_connection_sends_nothing_that_was_due() -> None:
    solo = Solo()
    connection = solo.endpoint.connect(TARGET, solo.now)
    connection.abort(solo.now)
    assert solo.out() == []


def test_segments_are_no_larger_than_the_peer_and_the_relay_take() -> None:  # 4.13
    solo = Solo().connect()
    solo.answer(Options(packet_bytes_max=5000))
    solo.out()
    solo.connection.write(bytes(20_000), solo.now)
    assert [packet.size for packet in solo.out()] == [5000, 5000, 5000, 5000, 96 + 24]
    solo.endpoint.attached(False, 3000, 1 << 30, solo.now)
    solo.connection.write(bytes(6_000), solo.now)
    assert [packet.size for packet in solo.out()] == [3000, 3000, 48 + 24]


def test_early_packets_are_small_enough_for_any_peer() -> None:  # 4.13, 3.6
    solo = Solo().connect()
    solo.connection.write(bytes(3000), solo.now)
    assert [len(packet.payload) for packet in solo.out()] == [1024, 1024, 952]


def test_a_delayed_ack_wants_no_batch_until_it_is_due() -> None:  # 4.3
    solo = Solo().opened()
    solo.data(0)
    assert not solo.connection.outbound.wants_control()
    solo.wait(25 * MS)
    assert solo.connection.outbound.wants_control()
    assert solo.acked().delay_us == 25 * MS


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


def test_without_a_route_no_batch_is_wanted() -> None:  # 6.5
    solo = Solo().served()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.connection.receiver.request_ack(solo.now)
    solo.endpoint.touch(solo.connection)
    assert not solo.endpoint.wants_batch()
