"""More of what leaves a connection: the form of its control packets, and that none is due twice."""

from tests.core.solo import PEER, SERVICE, Solo
from tunnel.core import State
from tunnel.core.constants import SECOND_US
from tunnel.wire import Dropped, DropReason, PacketType, RejectReason, decode_rejected, encode_dropped

NO_ROUTE = encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0))


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
