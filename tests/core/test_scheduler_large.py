"""Lost packets that are larger than a batch is now: they leave all the same, and block no other connection."""

import pytest

from tests.core.batching import ACK, DATA, KIB, fill, many
from tunnel.wire import PacketType


def test_a_packet_that_is_too_large_gets_its_own_batch_however_busy_the_others_are() -> None:
    solo, (large, busy) = many(2)
    large.write(bytes(50_000), solo.now)
    solo.endpoint.batch_done(fill(solo, 400_000).token, False, solo.now)
    found = []
    for number in range(5):
        solo.connection = busy
        solo.say(PacketType.PROBE)
        busy.write(b"x", solo.now)
        found.append(fill(solo, 16 * KIB))
        solo.now += number
    alone = [batch for batch in found if batch.size > 16 * KIB]
    assert [len(batch.packets) for batch in alone] == [1]
    assert sum(len(batch.packets) for batch in found if batch not in alone) >= 4


@pytest.mark.parametrize("size", [16 * KIB - 24, 16 * KIB - 60])
def test_a_packet_that_just_fits_alone_is_not_starved_by_steady_traffic(size: int) -> None:
    solo, (large, busy) = many(2)
    large.write(bytes(size), solo.now)
    solo.endpoint.batch_done(fill(solo, 400_000).token, False, solo.now)
    sizes = []
    for _ in range(5):
        solo.connection = busy
        solo.say(PacketType.PROBE)
        busy.write(b"x", solo.now)
        sizes += [len(packet.payload) for packet in fill(solo, 16 * KIB).packets]
    assert size in sizes


def test_a_lost_packet_leaves_when_it_just_fits() -> None:
    solo, (connection,) = many(1)
    connection.write(bytes(2000), solo.now)
    solo.endpoint.batch_done(fill(solo, 64 * KIB).token, False, solo.now)
    solo.say(PacketType.PROBE)
    other, _ = many(1)
    other.say(PacketType.PROBE)
    ack_size = fill(other, 64 * KIB).size
    assert [packet.type for packet in fill(solo, ack_size + 24 + 2000).packets] == [ACK, DATA]


def test_a_packet_that_is_too_large_by_its_header_gets_its_own_batch() -> None:
    solo, (large, busy) = many(2)
    large.write(bytes(32 * KIB), solo.now)
    solo.endpoint.batch_done(fill(solo, 256 * KIB).token, False, solo.now)
    sizes = []
    for _ in range(4):
        busy.write(b"x", solo.now)
        sizes.append(fill(solo, 32 * KIB).size)
    assert 32 * KIB + 24 in sizes


def test_a_packet_that_is_too_large_waits_for_its_turn_among_bulk() -> None:
    solo, (large, busy) = many(2)
    large.write(bytes(500_000), solo.now)
    solo.endpoint.batch_done(fill(solo, 400_000).token, False, solo.now)
    busy.write(bytes(100_000), solo.now)
    sizes = [fill(solo, 16 * KIB).size for _ in range(12)]
    assert max(sizes) == 50_024
    assert sum(size <= 16 * KIB for size in sizes) >= 3


def test_a_packet_of_at_most_half_a_batch_waits_for_its_turn() -> None:
    solo, (large, *small) = many(5)
    large.write(bytes(8 * KIB), solo.now)
    solo.endpoint.batch_done(fill(solo, 64 * KIB).token, False, solo.now)
    for connection in small:
        connection.write(bytes(2 * KIB), solo.now)
    batch = fill(solo, 16 * KIB)
    assert [packet.source for packet in batch.packets] == [connection.id for connection in small]
    assert batch.size == sum(packet.size for packet in batch.packets)
    small[0].write(b"x", solo.now)
    assert [packet.source for packet in fill(solo, 16 * KIB).packets] == [small[0].id, large.id]


def test_a_connection_may_end_before_its_packet_that_is_too_large_leaves() -> None:
    solo, (large, other) = many(2)
    large.write(bytes(50_000), solo.now)
    solo.endpoint.batch_done(fill(solo, 400_000).token, False, solo.now)
    solo.connection = other
    solo.say(PacketType.PROBE)
    assert [packet.type for packet in fill(solo, 16 * KIB).packets] == [ACK]
    large.abort(solo.now)
    batch = fill(solo, 16 * KIB)
    assert [packet.type for packet in batch.packets] == [PacketType.ABORT]
    assert batch.size == batch.packets[0].size
