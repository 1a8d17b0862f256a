"""A flush asks for an acknowledgement with PROBE: in which batch PROBE leaves, and when none is sent (4.17)."""

import pytest

from tests.core.batching import ACK, DATA, KIB, fill, many
from tests.core.solo import Solo
from tunnel.core import Flushed
from tunnel.wire import PacketType

PROBE = PacketType.PROBE


def kinds(solo: Solo, size: int) -> list[PacketType]:
    batch = fill(solo, size)
    assert batch.size == sum(packet.size for packet in batch.packets)
    assert batch.size <= size
    return [PacketType(packet.type) for packet in batch.packets]


def test_the_probe_follows_the_last_packet_of_its_connection() -> None:
    solo, (a, b) = many(2)
    for connection in (a, b):
        connection.write(b"x", solo.now)
    a.flush()
    assert kinds(solo, 64 * KIB) == [DATA, PROBE, DATA]
    assert not solo.endpoint.wants_batch()


@pytest.mark.parametrize(("left", "last"), [(24, [DATA, PROBE]), (23, [DATA])])
def test_the_probe_waits_for_the_next_batch_when_this_one_is_full(left: int, last: list[PacketType]) -> None:
    solo, (connection,) = many(1)
    connection.write(bytes(8 * KIB - 8 * 24 - left), solo.now)
    connection.flush()
    assert kinds(solo, 8 * KIB) == [DATA] * 7 + last
    assert [packet.type for packet in solo.out()] == [PROBE][: PROBE not in last]


def test_no_probe_leaves_when_everything_was_acknowledged_meanwhile() -> None:
    solo, (connection,) = many(1)
    connection.write(bytes(8 * KIB - 8 * 24), solo.now)
    connection.flush()
    assert kinds(solo, 8 * KIB) == [DATA] * 8
    solo.ack()
    assert solo.event(Flushed).connection_id == connection.id
    assert solo.out() == []


def test_the_probe_leaves_alone_or_with_an_ack_that_is_due() -> None:
    solo, (connection,) = many(1)
    connection.write(b"x", solo.now)
    assert kinds(solo, 8 * KIB) == [DATA]
    connection.flush()
    assert kinds(solo, 8 * KIB) == [PROBE]
    connection.flush()
    solo.say(PROBE)
    assert kinds(solo, 8 * KIB) == [ACK, PROBE]


def test_no_probe_leaves_when_nothing_is_unacknowledged() -> None:
    solo, (connection,) = many(1)
    connection.flush()
    assert not solo.endpoint.wants_batch()
    connection.write(b"x", solo.now)
    assert kinds(solo, 8 * KIB) == [DATA]
    solo.ack()
    connection.flush()
    assert not solo.endpoint.wants_batch()


def test_no_probe_leaves_before_the_peer_has_accepted() -> None:
    solo = Solo().connect()
    solo.connection.write(b"x", solo.now)
    solo.connection.flush()
    assert solo.types() == [DATA]
    solo.answer()
    assert solo.types() == [ACK]
    solo.connection.flush()
    assert solo.types() == [PROBE]
