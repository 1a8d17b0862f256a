"""One endpoint with many connections: demultiplexing, timers, traces, and the relay's loss and return."""

from random import Random

import pytest

from tests.core.pair import Pair
from tests.core.solo import KEY, MS, PEER, SERVICE, Solo, payload
from tunnel.core import Endpoint, EndpointConfig, LocalProtocolError, Lost, LostReason, Readable, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import (
    VERSION,
    Packet,
    PacketType,
    RejectReason,
    decode_rejected,
    encode_packets,
    parse_packets,
)

DATA, ACK, ABORT = PacketType.DATA, PacketType.ACK, PacketType.ABORT
# demultiplexing


def test_a_connection_that_ends_within_a_batch_takes_no_more_of_it() -> None:
    solo = Solo().opened()
    solo.receive(solo.packet(PacketType.SHUTDOWN), solo.packet(DATA, b"x", number=0))
    assert solo.event(Lost).reason is LostReason.RESET
    assert solo.types() == [ABORT]


def test_an_id_is_not_drawn_again_while_its_tombstone_lasts() -> None:  # 3.1
    class Repeating(Random):
        drawn = 0

        def getrandbits(self, k: int, /) -> int:
            self.drawn += 1
            return [0, 7, 7, 8][min(self.drawn - 1, 3)] if k == 32 else 1

    endpoint = Endpoint(EndpointConfig(), Repeating())
    assert endpoint.new_id() == 7
    endpoint.tombstones.add(7, 0)
    assert endpoint.new_id() == 8


def test_accepting_or_refusing_a_request_that_has_ended_raises() -> None:
    solo = Solo()
    solo.request()
    solo.say(PacketType.SHUTDOWN)
    with pytest.raises(LocalProtocolError, match="ended"):
        solo.endpoint.accept(solo.connection.id, solo.now)
    with pytest.raises(LocalProtocolError, match="ended"):
        solo.endpoint.refuse(solo.connection.id, RejectReason.REFUSED, "", solo.now)


# the carrier


def test_an_unknown_batch_is_ignored() -> None:
    solo = Solo().opened()
    solo.endpoint.batch_done(999, True, solo.now)
    assert solo.endpoint.next_batch(1 << 16, solo.now) is None


# time


def test_without_connections_there_is_no_timeout() -> None:
    solo = Solo()
    assert solo.endpoint.next_timeout() is None
    solo.opened().connection.abort(solo.now)
    assert solo.endpoint.next_timeout() is None
    assert solo.endpoint.connections == {}


def test_the_memory_for_timers_depends_on_the_connections_alone() -> None:
    solo = Solo().opened()
    for number in range(2_000):  # each sets the earliest deadline of all, that of a delayed ACK, and soon clears it
        solo.data(number)
        solo.wait(25 * MS)
        solo.out()
        solo.connection.read(10, solo.now)
    assert len(solo.endpoint._timers) < 100
    assert solo.endpoint.next_timeout() is not None


def test_timers_of_many_connections_survive_the_removal_of_stale_ones() -> None:
    pair = Pair()
    opened = [pair.open() for _ in range(20)]
    for _ in range(30):
        for connection, _ in opened[:4]:
            connection.write(b"x", pair.now)
        pair.run(100 * MS)
        for _, served in opened:
            served.read(10, pair.now)
    pair.run(61 * SECOND_US)
    assert len(pair.a.of_type(PacketType.PING)) + len(pair.a.of_type(PacketType.PONG)) >= 20
    assert all(connection.state is State.OPEN for connection, _ in opened)


def test_a_packet_of_another_version_does_not_hide_later_ones() -> None:  # 1.4
    solo = Solo().opened()
    strange = Packet(DATA, PEER, solo.connection.id, 7, b"?", 0, 9)
    stranger = Packet(DATA, PEER, solo.connection.id + 1, 7, b"?")
    mine = solo.packet(DATA, b"x", number=0)
    packets, _ = parse_packets(b"".join(encode_packets([mine])))
    solo.endpoint.receive_packets([strange, stranger, *packets], solo.now)
    assert solo.events() == [Readable(solo.connection.id)]
    assert solo.endpoint.packets_discarded == 2


def test_a_connect_in_packets_of_another_version_is_told_the_versions_of_this_one() -> None:  # 3.4
    solo = Solo()
    solo.receive(Packet(PacketType.CONNECT, PEER, 0, 7, KEY + b"?", 0, 9))
    rejected = decode_rejected(payload(solo.out(), PacketType.REJECTED))
    assert rejected is not None
    assert (rejected.route_key, rejected.reason, rejected.text) == (KEY, RejectReason.VERSION, "")
    assert rejected.options.versions == (VERSION, VERSION)
    assert solo.endpoint.packets_discarded == 1


def test_every_packet_for_an_unknown_id_is_counted() -> None:
    solo = Solo()
    for destination in (6, 7, 0, 0):
        solo.receive(Packet(DATA, 5, destination, 7, b"x"))
    assert solo.endpoint.packets_discarded == 4


def test_a_first_number_is_32_random_bits_above_two_to_the_32() -> None:  # 1.6
    class Fixed(Random):
        def getrandbits(self, bits: int) -> int:
            return (1 << bits) - 1

    assert Endpoint(EndpointConfig(), Fixed()).new_sequence() == (1 << 32) + (1 << 32) - 1


def test_connections_that_are_due_together_keep_their_order() -> None:
    solo = Solo()
    ids = [solo.endpoint.connect(SERVICE, solo.now).id for _ in range(3)]
    solo.out()
    solo.wait(SECOND_US)
    assert [packet.source for packet in solo.out()] == ids


def test_touching_a_connection_costs_no_timer() -> None:
    solo = Solo().opened()
    before = len(solo.endpoint._timers)
    for _ in range(50):
        solo.endpoint.touch(solo.connection)
    assert len(solo.endpoint._timers) == before


def test_the_route_key_has_16_bytes() -> None:  # 3.1
    assert len(Solo().connect().connection.identity.route_key) == 16


def test_an_endpoint_has_an_empty_name_by_default() -> None:
    assert Solo().endpoint.name == "solo"
    assert Endpoint(EndpointConfig(), Random(1)).name == ""
