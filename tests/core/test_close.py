"""PROTOCOL 5 between two endpoints: rows of the state table, and the orders in which the events may meet."""

import pytest

from tests.core.pair import GIVEN_UP, LOST, MS, Fate, Pair
from tests.core.rig import drain, is_gone, kinds
from tunnel.core import (
    Closed,
    Flushed,
    LocalProtocolError,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Readable,
    State,
)
from tunnel.core.constants import SECOND_US
from tunnel.wire import Packet, PacketType, decode_end

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
SHUTDOWN, ABORT = PacketType.SHUTDOWN, PacketType.ABORT


# the rows: each test is named after a state and the input that comes in it


def test_open_close_called() -> None:  # 5.2
    """The receive queue is junked, CLOSE follows the data already written, and acknowledgements go on."""
    pair = Pair()
    one, other = pair.open()
    other.write(b"junked", pair.now)
    pair.settle()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    assert one.state is State.CLOSING
    assert not one.readable
    with pytest.raises(LocalProtocolError):
        one.write(b"x", pair.now)
    assert one.read(10, pair.now) == b""
    other.write(b"discarded", pair.now)
    pair.settle()
    assert [packet.type for packet in pair.a.sent if packet.type in (DATA, CLOSE)] == [DATA, CLOSE]
    assert drain(other, pair) == b"abc"


def test_closing_close_acked() -> None:  # 5.3
    """The send side ends; the endpoint that closed reports Closed, releases the route and drains."""
    pair = Pair()
    one, other = pair.open()
    other.write(b"unread", pair.now)
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.settle()
    assert one.state is State.DRAIN
    assert kinds(pair.a) == [Flushed, Closed]
    assert pair.a.types().count(SHUTDOWN) == 1
    assert one.sender.window.idle


def test_open_peer_close() -> None:  # 5.4
    """Writing raises; bytes that the peer had not received are reported as Lost; bytes that arrived can be read."""
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    other.write(b"never read", pair.now)
    pair.settle()
    assert other.state is State.PEER_CLOSED
    with pytest.raises(PeerClosedError):
        other.write(b"x", pair.now)
    assert pair.b.take(PeerClosed) == [PeerClosed(other.id, 10)]
    assert drain(other, pair) == b"abc"
    assert pair.b.take(PeerFinished) == [PeerFinished(other.id)]
    assert pair.b.lost() is LostReason.PEER_CLOSED


def test_closing_peer_close() -> None:  # 5.4, 5.6
    """Both close at once: each acknowledges the other's CLOSE, and neither waits for the other."""
    pair = Pair()
    one, other = pair.open()
    one.close(pair.now)
    other.close(pair.now)
    assert (one.state, other.state) == (State.CLOSING, State.CLOSING)
    pair.settle()
    assert kinds(pair.a) == kinds(pair.b) == [Closed]
    assert is_gone(pair)  # each sent SHUTDOWN when its CLOSE was acknowledged


def test_closing_peer_close_with_bytes_in_flight() -> None:  # 5.4
    """Bytes that the peer had not received when it closed are reported as Lost; bytes that it had received are not."""
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    pair.settle()
    other.write(b"lost", pair.now)
    one.close(pair.now)
    other.close(pair.now)
    pair.settle()
    assert Closed in kinds(pair.a)
    assert pair.b.lost() is LostReason.PEER_CLOSED
    assert is_gone(pair)


def test_peer_closed_reader_at_close() -> None:  # 5.5
    """The end of stream is reported once, when the last byte has been read."""
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.settle()
    assert other.state is State.PEER_CLOSED
    other.read(2, pair.now)
    assert not other.at_eof
    other.read(2, pair.now)
    pair.settle()
    assert other.at_eof
    assert kinds(pair.b) == [Readable, PeerClosed, PeerFinished, Closed]
    assert is_gone(pair)


def test_peer_closed_close_called() -> None:
    """The application closes without reading the rest, and so sees no end of stream."""
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.settle()
    other.close(pair.now)
    pair.settle()
    assert not other.at_eof
    assert kinds(pair.b) == [Readable, PeerClosed, Closed]
    assert is_gone(pair)


def test_drain_close_acked() -> None:  # 5.7
    """Two CLOSEs cross: when its own is acknowledged, an endpoint waits for nothing more, and releases the route."""
    pair = Pair()
    one, other = pair.open()
    pair.lose = lambda side, packet: packet.type == SHUTDOWN
    one.close(pair.now)
    other.close(pair.now)
    pair.settle()
    assert (one.state, other.state) == (State.DRAIN, State.DRAIN)
    assert pair.a.types().count(SHUTDOWN) == pair.b.types().count(SHUTDOWN) == 1


def test_drain_shutdown() -> None:  # 5.7
    """An endpoint that receives SHUTDOWN after the end forgets the connection at once and sends SHUTDOWN, too."""
    pair = Pair()
    one, other = pair.open()
    one.close(pair.now)
    pair.settle()
    assert is_gone(pair)
    assert pair.b.types().count(SHUTDOWN) == 1
    assert (one.state, other.state) == (State.CLOSED, State.CLOSED)


def test_drain_drained() -> None:  # 5.7
    """Without SHUTDOWN the drain ends after the user timeout."""
    pair = Pair()
    one, _ = pair.open()
    pair.lose = lambda side, packet: packet.type == SHUTDOWN
    one.close(pair.now)
    pair.settle()
    pair.run(299 * SECOND_US)
    assert not is_gone(pair)
    pair.run(2 * SECOND_US)
    assert is_gone(pair)
    assert Lost not in kinds(pair.a) + kinds(pair.b)


def test_drain_lost() -> None:  # 5.8
    """An ABORT ends the drain at once, and no second end is reported."""
    pair = Pair()
    one, _ = pair.open()
    pair.lose = lambda side, packet: packet.type == SHUTDOWN
    one.close(pair.now)
    pair.settle()
    kinds(pair.a)
    pair.inject(pair.a, Packet(ABORT, one.identity.peer_id, one.id, 0, b"\x00\x01\x00\x00"))
    assert one.state is State.CLOSED
    assert kinds(pair.a) == []


# orders in which the events may meet


def test_after_finish_the_other_direction_stays_open_until_close() -> None:  # 5.1, 5.2
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.finish(pair.now)
    pair.settle()
    assert drain(other, pair) == b"abc"
    assert kinds(pair.b) == [Readable, PeerFinished]
    other.write(b"answer", pair.now)
    pair.settle()
    assert drain(one, pair) == b"answer"
    one.close(pair.now)
    pair.settle()
    assert kinds(pair.b) == [Flushed, PeerClosed, Closed]
    assert is_gone(pair)


def test_a_connection_that_both_sides_finished_ends_with_close() -> None:  # 5.1
    pair = Pair()
    one, other = pair.open()
    for connection in (one, other):
        connection.finish(pair.now)
    pair.settle()
    assert one.at_eof
    assert other.at_eof
    assert (one.state, other.state) == (State.OPEN, State.OPEN)
    other.close(pair.now)
    pair.settle()
    assert Closed in kinds(pair.a)
    assert is_gone(pair)


def test_a_close_that_overtakes_its_data_waits_for_it() -> None:  # 5.4, 5.9
    pair = Pair()
    one, other = pair.open()
    pair.hold = lambda side, packet: packet.type == DATA and not packet.attempt
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.settle()
    assert other.state is State.PEER_CLOSED
    assert not other.at_eof
    assert not other.complete
    pair.hold = lambda side, packet: False
    pair.release()
    pair.settle()
    assert drain(other, pair) == b"abc"
    assert other.at_eof
    assert is_gone(pair)


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


def test_close_delivers_our_data_in_flight_and_reports_the_peers_as_lost() -> None:  # 5.2, 5.4
    pair = Pair()
    one, other = pair.open()
    one.write(b"a" * 100_000, pair.now)
    other.write(b"b" * 100_000, pair.now)
    pair.run(7 * MS)  # the data is in flight
    one.close(pair.now)
    pair.settle()
    assert drain(other, pair) == b"a" * 100_000
    pair.settle()
    assert Closed in kinds(pair.a)
    assert pair.b.lost() is LostReason.PEER_CLOSED
    assert is_gone(pair)


def test_close_names_the_last_packet_received_so_that_its_ack_may_be_lost() -> None:  # 2.5, 5.4
    pair = Pair()
    one, other = pair.open()
    pair.lose = lambda side, packet: packet.type == ACK and side is pair.a
    other.write(b"received", pair.now)
    pair.run(100 * MS)
    assert drain(one, pair) == b"received"
    one.close(pair.now)
    pair.run(100 * MS)
    (close,) = pair.a.of_type(CLOSE)[:1]
    end = decode_end(close.payload)
    assert end is not None
    assert end.received == pair.b.of_type(DATA)[0].sequence
    assert pair.b.only(PeerClosed).junked_bytes == 0
    assert Closed in kinds(pair.b)


def test_the_route_may_be_lost_in_the_middle_of_the_end() -> None:  # 6.5, 6.6
    pair = Pair()
    one, other = pair.open()
    one.write(b"abc", pair.now)
    one.close(pair.now)
    pair.run(8 * MS)
    pair.restart_relay()
    pair.run(5 * SECOND_US)
    assert drain(other, pair) == b"abc"
    pair.run(70 * SECOND_US)
    assert Closed in kinds(pair.a)
    assert Closed in kinds(pair.b)
    assert is_gone(pair)


def test_a_resume_in_the_drain_acknowledges_the_repeated_close() -> None:  # 5.7, 6.6
    pair = Pair()
    one, other = pair.open()
    pair.lose = lambda side, packet: side is pair.b  # everything that `other` sends is lost
    one.close(pair.now)
    pair.run(SECOND_US)
    assert (one.state, other.state) == (State.CLOSING, State.DRAIN)
    pair.restart_relay()
    pair.run(10 * SECOND_US)
    pair.lose = lambda side, packet: False
    pair.run(10 * SECOND_US)
    assert kinds(pair.a) == [Closed]
    pair.run(70 * SECOND_US)
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
