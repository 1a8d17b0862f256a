"""PROTOCOL 5 between two endpoints: the orders in which the events of the end may meet, and a lost SHUTDOWN (5.7)."""

import pytest

from tests.core.pair import GIVEN_UP, LOST, MS, SERVICE, Fate, Pair, Side
from tests.core.rig import drain, is_gone, kinds
from tests.core.solo import PEER, Solo
from tunnel.core import Closed, Lost, LostReason, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import End, Packet, PacketType, encode_end

CLOSE, FINISH, ACK, SHUTDOWN = PacketType.CLOSE, PacketType.FINISH, PacketType.ACK, PacketType.SHUTDOWN


# orders in which the events may meet


@pytest.mark.parametrize("lost", [CLOSE, ACK, SHUTDOWN, FINISH])
@pytest.mark.parametrize("times", [1, 3])
def test_any_packet_of_the_end_may_be_lost(lost: PacketType, times: int) -> None:  # 5.1, 5.7
    pair = Pair()
    one, other = pair.open()
    pair.lose_first(lost, times)
    one.write(b"abc", pair.now)
    one.finish(pair.now)
    other.write(b"def", pair.now)
    other.finish(pair.now)
    pair.run(20 * SECOND_US)
    assert drain(one, pair) == b"def"
    assert drain(other, pair) == b"abc"
    one.close(pair.now)
    pair.run(20 * SECOND_US)
    other.close(pair.now)
    pair.run(400 * SECOND_US)
    assert Closed in kinds(pair.a)
    assert Closed in kinds(pair.b)
    assert is_gone(pair)


def test_batches_may_be_given_up_in_the_middle_of_the_end() -> None:  # 4.10
    pair = Pair()
    one, other = pair.open()
    fates = [GIVEN_UP, GIVEN_UP, LOST, Fate((10 * MS, 40 * MS)), GIVEN_UP]
    pair.fate = lambda side, packets: fates.pop(0) if fates else Fate()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    other.finish(pair.now)
    pair.run(10 * SECOND_US)
    assert drain(other, pair) == b"abc"
    pair.run(70 * SECOND_US)
    assert Closed in kinds(pair.a)
    assert is_gone(pair)


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
    assert [packet.attempt for packet in pair.a.of_type(SHUTDOWN)] == [0, 1]
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


def batches_of(pair: Pair) -> list[tuple[str, list[PacketType]]]:
    """Return a list that fills with the sender and the types of each batch."""
    found: list[tuple[str, list[PacketType]]] = []

    def fate(side: Side, packets: list[Packet]) -> Fate:
        found.append((side.name, [PacketType(packet.type) for packet in packets]))
        return Fate()

    pair.fate = fate
    return found


def test_an_opening_takes_three_batches_and_its_first_data_a_fourth() -> None:  # 3.5
    pair = Pair()
    pair.b.endpoint.listen(SERVICE.host, 8, pair.now)
    pair.run(SECOND_US)
    found = batches_of(pair)
    connection = pair.a.endpoint.connect(SERVICE, pair.now)
    pair.settle()
    connection.write(b"x", pair.now)
    pair.settle()
    connect, accepted, data = PacketType.CONNECT, PacketType.ACCEPTED, PacketType.DATA
    assert found[:4] == [("a", [connect]), ("b", [accepted]), ("a", [ACK]), ("a", [data])]
    assert [sender for sender, types in found[4:] if types != [ACK]] == []


def test_closes_that_cross_wait_for_the_acks() -> None:  # 5.7
    pair = Pair()
    one, other = pair.open()
    found = batches_of(pair)
    one.close(pair.now)
    other.close(pair.now)
    pair.run(SECOND_US)
    assert sorted(found) == sorted((side, types) for side in "ab" for types in ([CLOSE], [ACK], [SHUTDOWN]))
    assert is_gone(pair)


@pytest.mark.parametrize("first", [True, False])
def test_crossing_closes_report_success_only_for_acknowledged_bytes(*, first: bool) -> None:  # 5.7, 5.9
    """`b` never hears of the CLOSE of `a`, nor of any ACK. SHUTDOWN alone would look like the ACK of its CLOSE."""
    pair = Pair()
    one, other = pair.open()
    pair.lose = lambda side, packet: side is pair.a and packet.type in (CLOSE, ACK)
    for connection in (one, other) if first else (other, one):
        connection.write(b"abc", pair.now)
        connection.close(pair.now)
    pair.run(500 * MS)
    assert one.state is State.DRAIN
    assert SHUTDOWN not in pair.a.types()
    assert other.state is State.CLOSING
    assert Closed not in kinds(pair.b)
    pair.lose = lambda side, packet: False
    pair.run(70 * SECOND_US)
    assert Closed in kinds(pair.b)
    assert is_gone(pair)


def test_a_reader_that_leaves_with_a_gap_reports_nothing_as_received() -> None:  # 5.2, 5.7
    """The CLOSE of `a` came, data before it did not, and `b` closes without reading."""
    pair = Pair()
    one, other = pair.open()
    pair.fate = lambda side, packets: LOST
    one.write(b"abc", pair.now)
    pair.settle()
    pair.fate = lambda side, packets: Fate()
    one.close(pair.now)
    pair.run(11 * MS)
    assert other.state is State.PEER_CLOSED
    pair.lose = lambda side, packet: side is pair.b and packet.type == ACK
    other.close(pair.now)
    pair.run(11 * MS)
    assert SHUTDOWN not in pair.b.types()
    assert one.state is State.CLOSING
    assert Closed not in kinds(pair.a)
    pair.lose = lambda side, packet: False
    pair.run(70 * SECOND_US)
    assert Closed in kinds(pair.a)
    assert is_gone(pair)


@pytest.mark.parametrize("ends", [PacketType.FINISH, PacketType.CLOSE])
def test_a_wrong_digest_is_told_in_place_of_the_ack(ends: PacketType) -> None:  # 5.1, 5.7
    pair = Pair()
    one, other = pair.open()
    pair.run(SECOND_US)
    one.write(b"abc", pair.now)
    pair.settle()
    pair.run(SECOND_US)
    assert drain(other, pair) == b"abc"
    pair.b.sent.clear()
    end = encode_end(End(3, bytes(16)))
    pair.inject(pair.b, Packet(ends, one.id, other.id, one.sender.window.next_sequence & 0xFFFFFFFF, end))
    pair.settle()
    assert pair.b.types() == [PacketType.ABORT]
    assert pair.a.lost() is LostReason.INTEGRITY
    assert pair.b.lost() is LostReason.INTEGRITY


def test_a_reader_that_ends_while_the_route_is_lost_sends_nothing() -> None:  # 5.7, 6.5
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.lose = lambda side, packet: side is pair.b
    pair.settle()
    pair.lose = lambda side, packet: True
    pair.restart_relay()
    pair.settle()
    pair.b.sent.clear()
    assert drain(other, pair) == b"abc"
    pair.settle()
    assert other.state is State.DRAIN
    assert not pair.b.sent
    pair.lose = lambda side, packet: False
    pair.run(70 * SECOND_US)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)


@pytest.mark.parametrize("times", [1, 2])
def test_the_batch_of_ack_and_shutdown_may_be_lost(times: int) -> None:  # 5.1, 5.7
    pair = Pair()
    one, _ = pair.open()
    fates = [LOST] * times
    pair.fate = lambda side, packets: fates.pop() if side is pair.b and fates else Fate()
    one.close(pair.now)
    pair.run(20 * SECOND_US)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)


def test_resumes_lengthen_a_drain_at_most_to_twice_its_time() -> None:  # 5.7
    pair = Pair()
    one, _ = pair.open()
    pair.lose = lambda side, packet: side is pair.b and packet.type == SHUTDOWN
    one.close(pair.now)
    pair.settle()
    assert one.state is State.DRAIN
    for _ in range(2):
        pair.run(290 * SECOND_US)
        one.route_resumed(pair.now)
    assert one.state is State.DRAIN
    pair.run(21 * SECOND_US)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)
