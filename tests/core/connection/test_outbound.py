"""The packets that leave a connection: CONNECT, answers, control packets, segments."""

from tests.core.solo import NO_ROUTE, PEER, Solo
from tunnel.core.constants import SECOND_US
from tunnel.wire import (
    PacketType,
)

ACCEPTED, ACK = PacketType.ACCEPTED, PacketType.ACK
PING, PONG = PacketType.PING, PacketType.PONG


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
