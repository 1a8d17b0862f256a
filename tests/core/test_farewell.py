"""A lost SHUTDOWN is repeated until the peer sends it, too, so that neither side keeps the route (PROTOCOL 5.7)."""

import pytest

from tests.core.pair import Pair
from tests.core.rig import drain, is_gone, kinds
from tests.core.solo import PEER, Solo
from tunnel.core import Lost, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import Packet, PacketType

SHUTDOWN = PacketType.SHUTDOWN


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_shutdown_is_repeated_until_the_peer_sends_it(lost: int) -> None:  # 5.7
    """Nothing else would end the route at the relay, or the drain of the peer, before the user timeout."""
    pair = Pair()
    one, _ = pair.open()
    pair.lose_first(SHUTDOWN, lost, pair.a)
    one.close(pair.now)
    pair.run((2**lost - 1) * SECOND_US + SECOND_US // 2)  # RTO is a second, and doubles
    assert is_gone(pair)
    assert [packet.attempt for packet in pair.a.of_type(SHUTDOWN)] == [*range(lost + 1), 0]
    assert [packet.attempt for packet in pair.b.of_type(SHUTDOWN)] == [0]
    assert Lost not in kinds(pair.a) + kinds(pair.b)


def test_endpoints_that_closed_at_the_same_time_send_shutdown_without_an_ack() -> None:  # 5.6, 5.7
    """Neither repeats its CLOSE once it has the peer's, so both would wait for an ACK that is lost."""
    pair = Pair()
    one, other = pair.open()
    pair.lose = lambda side, packet: packet.type == PacketType.ACK
    one.close(pair.now)
    other.close(pair.now)
    pair.settle()
    assert (one.state, other.state) == (State.DRAIN, State.DRAIN)
    assert SHUTDOWN not in pair.a.types() + pair.b.types()
    pair.run(SECOND_US + SECOND_US // 2)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)


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


def test_a_shutdown_that_answers_another_is_not_answered() -> None:  # 5.7
    """Two endpoints that have both forgotten the connection would otherwise send SHUTDOWN to each other forever."""
    pair = Pair()
    one, other = pair.open()
    one.close(pair.now)
    pair.settle()
    for side in pair.sides:
        side.sent.clear()
    pair.inject(pair.b, Packet(SHUTDOWN, one.id, other.id, 0))
    pair.settle()
    assert pair.b.sent == []
    pair.inject(pair.b, Packet(SHUTDOWN, one.id, other.id, 0, attempt=1))
    pair.settle()
    assert pair.b.types() == [SHUTDOWN]
    assert pair.b.sent[0].attempt == 0
    assert pair.a.sent == []


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


def test_a_slow_reader_causes_few_shutdowns() -> None:  # 5.7
    """Its endpoint answers when everything is read; until then SHUTDOWN is repeated with exponential backoff."""
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.run(250 * SECOND_US)
    assert other.state is State.PEER_CLOSED
    assert 7 <= len(pair.a.of_type(SHUTDOWN)) <= 10
    assert drain(other, pair) == b"abc"
    pair.settle()
    assert is_gone(pair)


def test_a_late_ack_of_a_close_that_crossed_does_not_begin_the_repeats_again() -> None:  # 5.7
    """The peer has forgotten the connection, and its SHUTDOWN was lost: it answers a repeat, but never attempt 0."""
    pair = Pair()
    one, other = pair.open()
    pair.hold = lambda side, packet: side is pair.b and packet.type == PacketType.ACK
    pair.lose = lambda side, packet: side is pair.b and packet.type == SHUTDOWN
    one.close(pair.now)
    other.close(pair.now)
    pair.run_until(lambda: not pair.b.endpoint.connections)
    pair.settle()
    assert one.state is State.DRAIN
    pair.lose = lambda side, packet: False
    pair.hold = lambda side, packet: False
    pair.release()
    pair.run(SECOND_US + SECOND_US // 2)
    assert [packet.attempt for packet in pair.a.of_type(SHUTDOWN)] == [0, 1, 0]
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)
