"""Every packet that arrives is counted, and a refused one changes nothing."""

from tests.core.solo import PEER, Solo
from tunnel.core import EndpointConfig, Lost, LostReason, State
from tunnel.wire import Dropped, DropReason, Packet, PacketType, encode_dropped

DATA = PacketType.DATA


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
