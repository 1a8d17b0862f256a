"""One endpoint with many connections: demultiplexing, timers, traces, and the relay's loss and return."""

from random import Random
from typing import Any

import pytest

from tests.core.pair import Pair
from tests.core.solo import FIRST, KEY, MS, PEER, SERVICE, TARGET, Solo
from tunnel.core import Endpoint, EndpointConfig, LocalProtocolError, Lost, LostReason, Readable, State
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.traces.record import TraceEvent, TraceRecord
from tunnel.wire import (
    Accepted,
    Packet,
    PacketType,
    RejectReason,
    encode_accepted,
    encode_edge,
    encode_packets,
    parse_packets,
)
from tunnel.wire.control import Edge

DATA, ACK, ABORT = PacketType.DATA, PacketType.ACK, PacketType.ABORT
# demultiplexing


def test_answers_for_unknown_ids_are_bounded() -> None:  # 3.9
    solo = Solo()
    for _ in range(2):
        solo.receive(*[Packet(DATA, PEER, number, 5, b"x") for number in range(1, 100)])
        assert len(solo.out()) == 64


def test_packets_without_destination_or_of_another_version_are_discarded() -> None:  # 1.4
    solo = Solo().opened()
    solo.receive(Packet(DATA, PEER, 0, 5, b"x"))
    other = solo.packet(DATA, b"x", number=0)
    other.version = 2
    solo.receive(other)
    assert solo.endpoint.packets_discarded == 2
    assert (solo.out(), solo.events()) == ([], [])


def test_one_batch_may_hold_packets_of_many_connections() -> None:
    solo = Solo()
    connections = [solo.opened(TARGET).connection for _ in range(3)]
    packets = []
    for connection in connections:
        solo.connection = connection
        packets += [solo.packet(DATA, b"abc", number=0), solo.packet(DATA, b"def", number=1)]
    solo.receive(*packets)
    assert [bytes(connection.read(9, solo.now)) for connection in connections] == [b"abcdef"] * 3
    solo.wait(25 * MS)
    assert solo.types() == [ACK] * 3


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


def test_announcements_and_refusals_leave() -> None:
    solo = Solo()
    solo.endpoint.listen("s", 8, solo.now)
    solo.endpoint.unlisten("s", solo.now)
    solo.request(SERVICE)
    solo.request(TARGET)
    solo.endpoint.refuse(solo.connection.id, RejectReason.REFUSED, "", solo.now)
    expected = [PacketType.LISTEN_STATE] * 2 + [PacketType.REJECTED] * 2
    assert solo.types() == expected


# the carrier


def test_attaching_to_the_same_relay_again_changes_nothing() -> None:
    solo = Solo().opened()
    solo.endpoint.attached(False, 1 << 20, 5000, solo.now)
    assert solo.connection.handshake.suspended_since_us == NEVER_US
    assert solo.out() == []


def test_the_carrier_may_change_its_lanes_and_its_pulls() -> None:
    solo = Solo().opened()
    solo.endpoint.carrier_changed(4, 0, solo.now)
    assert solo.out() == []
    assert solo.endpoint.carrier.lanes == 4
    solo.endpoint.carrier_changed(4, 2 * SECOND_US, solo.now)
    assert solo.types() == [PacketType.OPTION]


def test_an_unknown_batch_is_ignored() -> None:
    solo = Solo().opened()
    solo.endpoint.batch_done(999, True, solo.now)
    assert solo.endpoint.next_batch(1 << 16, solo.now) is None


# time


def test_handling_timeouts_too_early_or_too_late_is_harmless() -> None:
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    for now in (solo.now, solo.now + 1, solo.now + 999_999):
        solo.endpoint.handle_timeout(now)
        assert not solo.endpoint.wants_batch()
    solo.now += 1000 * SECOND_US
    solo.endpoint.handle_timeout(solo.now)
    timeout = solo.endpoint.next_timeout()
    assert timeout is None or timeout > solo.now


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


# traces


def test_a_trace_records_states_packets_and_causes() -> None:
    records: list[TraceRecord] = []
    solo = Solo(trace=records.append).opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.wait(SECOND_US)
    solo.out()
    solo.connection.abort(solo.now)
    solo.out()
    assert {record.node for record in records} == {"solo"}
    events = [record.event for record in records]
    assert events.count(TraceEvent.CONNECTION_STATE_UPDATED) == 2
    received = [record for record in records if record.event == TraceEvent.PACKET_RECEIVED]
    assert [record.packet_type for record in received] == [PacketType.ACCEPTED]
    sent = [record for record in records if record.event == TraceEvent.PACKET_SENT]
    assert [record.packet_type for record in sent] == [PacketType.CONNECT, ACK, DATA, DATA]
    assert [record.cause for record in sent] == ["", "", "", "retransmit_timeout"]
    of_batches = {TraceEvent.BATCH_SENT, TraceEvent.BATCH_RECEIPTED}
    assert {record.connection for record in records if record.event not in of_batches} == {solo.connection.id}
    assert [record.text for record in records if record.text][-1] == "closed"


def test_an_acceptor_and_packets_of_no_connection_are_traced() -> None:
    records: list[TraceRecord] = []
    solo = Solo(EndpointConfig(exit=True), trace=records.append)
    solo.request()
    solo.endpoint.accept(solo.connection.id, solo.now)
    solo.wait(SECOND_US)
    accepted = [packet for packet in solo.out() if packet.type == PacketType.ACCEPTED]
    assert len(accepted) == 1
    sent = [record for record in records if record.event == TraceEvent.PACKET_SENT]
    assert [(record.packet_type, record.connection) for record in sent] == [(PacketType.ACCEPTED, solo.connection.id)]
    window = solo.connection.sender.window
    window.outstanding.clear()
    solo.request()  # repeats CONNECT although ACCEPTED is acknowledged
    solo.out()
    assert records[-1].cause == ""
    own = solo.connection.id
    solo.receive(Packet(PacketType.EDGE, 0, own, 0, encode_edge(Edge(FIRST % 2**32, 5))))
    solo.receive(Packet(PacketType.ACCEPTED, 1234, 5, 0, encode_accepted(Accepted(KEY, False, 5))))
    assert solo.types() == [ABORT]


DATA = PacketType.DATA


EDGE_BYTES = 1 << 30  # the edge at which Solo attaches: no relay has announced another


def test_a_packet_of_another_version_does_not_hide_later_ones() -> None:  # 1.4
    solo = Solo().opened()
    strange = Packet(DATA, PEER, solo.connection.id, 7, b"?", 0, 9)
    stranger = Packet(DATA, PEER, solo.connection.id + 1, 7, b"?")
    mine = solo.packet(DATA, b"x", number=0)
    packets, _ = parse_packets(b"".join(encode_packets([mine])))
    solo.endpoint.receive_packets([strange, stranger, *packets], solo.now)
    assert solo.events() == [Readable(solo.connection.id)]
    assert solo.endpoint.packets_discarded == 2


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


def test_a_trace_records_every_field_of_a_packet() -> None:
    records: list[TraceRecord] = []
    solo = Solo(trace=records.append).connect()
    solo.answer(window=1000)
    solo.out()
    connection = solo.connection
    connection.write(bytes(400), solo.now)
    (first,) = solo.out()
    solo.now += SECOND_US // 10
    solo.ack(window=1000)
    connection.write(bytes(600), solo.now)
    solo.out(ok=False)
    solo.out()
    connection.write(bytes(400), solo.now)
    solo.out()
    sent = [record for record in records if record.event == TraceEvent.PACKET_SENT and record.packet_type == DATA]
    common: dict[str, Any] = {
        "node": "solo",
        "event": TraceEvent.PACKET_SENT,
        "connection": connection.id,
        "peer": PEER,
        "packet_type": int(DATA),
        "rto_us": SECOND_US,
    }
    second = {**common, "time_us": solo.now, "sequence": (first.sequence + 1) % 2**32, "srtt_us": 100_000}
    in_window: dict[str, Any] = {"window_bytes": 400, "in_flight_bytes": 600, "edge_bytes": EDGE_BYTES - 600}
    assert sent[0] == TraceRecord(
        **common,
        time_us=SECOND_US,
        sequence=first.sequence,
        size_bytes=424,
        window_bytes=600,
        in_flight_bytes=400,
        edge_bytes=EDGE_BYTES - 400,
        batch=3,
    )
    assert sent[1] == TraceRecord(**second, **in_window, size_bytes=624, batch=4)
    assert sent[2] == TraceRecord(**second, **in_window, attempt=1, size_bytes=624, cause="batch_given_up", batch=5)
    assert (sent[3].window_bytes, sent[3].in_flight_bytes) == (0, 1000)


def test_the_route_key_has_16_bytes() -> None:  # 3.1
    assert len(Solo().connect().connection.identity.route_key) == 16


def test_a_trace_records_both_ids_and_the_state_of_the_timers() -> None:
    records: list[TraceRecord] = []
    solo = Solo(trace=records.append).opened(SERVICE)
    connection = solo.connection
    connection.write(b"abc", solo.now)
    solo.out()
    solo.now += SECOND_US // 10
    solo.ack()
    connection.sender.rtt.backed_off()
    connection.abort(solo.now)
    ended = [record for record in records if record.event == TraceEvent.CONNECTION_STATE_UPDATED][-1]
    assert (ended.node, ended.connection, ended.peer) == ("solo", connection.id, PEER)
    assert (ended.srtt_us, ended.rto_us, ended.backoff, ended.text) == (100_000, 2 * SECOND_US, 1, "closed")
    received = [record for record in records if record.event == TraceEvent.PACKET_RECEIVED]
    assert {record.cause for record in received} == {""}
    assert [record.packet_type for record in received] == [PacketType.ACCEPTED, PacketType.ACK]


def test_an_endpoint_has_an_empty_name_by_default() -> None:
    assert Solo().endpoint.name == "solo"
    assert Endpoint(EndpointConfig(), Random(1)).name == ""
