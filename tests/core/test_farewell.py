"""A lost SHUTDOWN is repeated until the peer sends it, too, so that neither side keeps the route (PROTOCOL 5.7)."""

from tests.core.pair import Pair
from tests.core.rig import is_gone, kinds
from tests.core.solo import PEER, Solo
from tunnel.core import Lost, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import Packet, PacketType

SHUTDOWN = PacketType.SHUTDOWN


def test_an_endpoint_that_has_forgotten_the_connection_answers_a_repeated_shutdown() -> None:  # 5.7
    pair = Pair()
    one, _ = pair.open()
    pair.lose_first(SHUTDOWN, sender=pair.b)
    one.close(pair.now)
    pair.settle()
    assert not pair.b.endpoint.connections
    assert one.state is State.DRAIN
    pair.run(2 * SECOND_US)
    assert is_gone(pair)
    assert [packet.attempt for packet in pair.a.of_type(SHUTDOWN)] == [0, 1, 0]
    assert [packet.attempt for packet in pair.b.of_type(SHUTDOWN)] == [0, 0]


def test_answers_for_unknown_ids_are_bounded() -> None:  # 5.7, 3.9
    """A peer that repeats SHUTDOWN for unknown ids gets a bounded number of answers."""
    solo = Solo()
    for number in range(1, 100):
        solo.receive(Packet(SHUTDOWN, PEER, number, 0, attempt=1))
    answers = solo.out()
    assert len(answers) == 64
    assert answers[0] == Packet(SHUTDOWN, 1, PEER, 0)


def test_shutdown_is_not_repeated_while_the_route_is_gone() -> None:  # 5.7, 6.6
    """It would be lost; it is due again when the route is back."""
    pair = Pair()
    one, _ = pair.open()
    pair.lose = lambda side, packet: packet.type in (SHUTDOWN, PacketType.CONNECT)
    one.close(pair.now)
    pair.settle()
    pair.restart_relay()
    pair.run(30 * SECOND_US)
    assert [packet.attempt for packet in pair.a.of_type(SHUTDOWN)] == [0]
    pair.lose = lambda side, packet: False
    pair.run(4 * SECOND_US)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)
