"""Clauses 3.1 to 3.9 and 6.5 to 6.7 between two endpoints: opening and resuming while packets overtake each other."""

import pytest

from tests.core.pair import GIVEN_UP, LOST, MS, SERVICE, Fate, Pair, Side
from tunnel.core import (
    Connection,
    Flushed,
    Incoming,
    Lost,
)
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.wire import Packet, PacketType

DATA, ACK, ACCEPTED, CONNECT = PacketType.DATA, PacketType.ACK, PacketType.ACCEPTED, PacketType.CONNECT
EARLY = bytes(range(256)) * 200  # 50 KiB


def read_all(connection: Connection, pair: Pair) -> bytes:
    parts = []
    while len(part := connection.read(1 << 20, pair.now)):
        parts.append(bytes(part))
        pair.settle()
    return b"".join(parts)


class Losing:
    """A filter for `Pair.lose` that loses the first `count` packets of a type."""

    def __init__(self, packet_type: PacketType, count: int) -> None:
        self.packet_type = packet_type
        self.left = count

    def __call__(self, side: Side, packet: Packet) -> bool:
        if packet.type != self.packet_type or not self.left:
            return False
        self.left -= 1
        return True


@pytest.mark.parametrize("lost", [CONNECT, ACCEPTED, ACK, DATA])
@pytest.mark.parametrize("times", [1, 2])
def test_any_packet_of_the_opening_may_be_lost(lost: PacketType, times: int) -> None:  # 3.1, 3.5
    pair = Pair()
    pair.b.endpoint.listen("s", 5, pair.now)
    pair.lose = Losing(lost, times)
    one = pair.a.endpoint.connect(SERVICE, pair.now)
    one.write(EARLY, pair.now)
    pair.run(30 * SECOND_US)
    other = pair.b.endpoint.connections[pair.b.only(Incoming).connection_id]
    assert read_all(other, pair) == EARLY
    assert len(pair.b.endpoint.connections) == 1
    other.write(b"answer", pair.now)
    pair.run(SECOND_US)
    assert read_all(one, pair) == b"answer"


# resume


@pytest.mark.parametrize("at_us", range(0, 60 * MS, 4 * MS))
def test_a_resume_loses_no_data_in_flight_either_way(at_us: int) -> None:  # 6.5, 6.6, 4.10
    pair = Pair()
    one, other = pair.open()
    one.write(EARLY * 4, pair.now)
    other.write(EARLY * 4, pair.now)
    pair.run(at_us)
    pair.restart_relay()
    pair.run(3 * SECOND_US)
    assert one.handshake.suspended_since_us == other.handshake.suspended_since_us == NEVER_US
    assert read_all(other, pair) == EARLY * 4
    assert read_all(one, pair) == EARLY * 4
    pair.run(SECOND_US)
    assert pair.a.take(Flushed)
    assert pair.b.take(Flushed)
    assert not pair.a.take(Lost)


@pytest.mark.parametrize("lost", [CONNECT, ACCEPTED, ACK])
@pytest.mark.parametrize("times", [1, 3])
def test_any_packet_of_a_resume_may_be_lost(lost: PacketType, times: int) -> None:  # 6.5
    pair = Pair()
    one, other = pair.open()
    pair.lose = Losing(lost, times)
    pair.restart_relay()
    one.write(EARLY, pair.now)
    other.write(EARLY, pair.now)
    pair.run(20 * SECOND_US)
    assert read_all(other, pair) == EARLY
    assert read_all(one, pair) == EARLY


def test_batches_may_be_given_up_during_the_handshake() -> None:  # 4.10
    pair = Pair()
    pair.b.endpoint.listen("s", 5, pair.now)
    fates = [GIVEN_UP, GIVEN_UP, Fate(), GIVEN_UP, LOST, GIVEN_UP]
    pair.fate = lambda side, packets: fates.pop(0) if fates else Fate()
    one = pair.a.endpoint.connect(SERVICE, pair.now)
    one.write(EARLY, pair.now)
    pair.run(10 * SECOND_US)
    other = pair.b.endpoint.connections[pair.b.only(Incoming).connection_id]
    assert read_all(other, pair) == EARLY
