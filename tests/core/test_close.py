"""PROTOCOL 5 between two endpoints: rows of the state table, and the orders in which the events may meet."""

import pytest

from tests.core.pair import GIVEN_UP, LOST, MS, Fate, Pair
from tests.core.rig import drain, is_gone, kinds
from tunnel.core import Closed, PeerClosed, Readable
from tunnel.core.constants import SECOND_US
from tunnel.wire import PacketType

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
SHUTDOWN, ABORT = PacketType.SHUTDOWN, PacketType.ABORT


# the rows: each test is named after a state and the input that comes in it


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
