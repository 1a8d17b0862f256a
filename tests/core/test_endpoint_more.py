"""More of an endpoint: batches with strangers in them, what it answers, and what its trace says."""

from random import Random
from typing import Any

from tests.core.solo import PEER, SERVICE, Solo
from tunnel.core import Endpoint, EndpointConfig, Readable
from tunnel.core.constants import SECOND_US
from tunnel.traces.record import TraceEvent, TraceRecord
from tunnel.wire import Packet, PacketType, encode_packets, parse_packets

DATA = PacketType.DATA
EDGE_BYTES = 1 << 30  # of the rig: no relay has said anything


def test_what_is_of_another_version_hides_nothing_behind_it() -> None:  # 1.2
    solo = Solo().opened()
    strange = Packet(DATA, PEER, solo.connection.id, 7, b"?", 0, 9)
    stranger = Packet(DATA, PEER, solo.connection.id + 1, 7, b"?")
    mine = solo.packet(DATA, b"x", number=0)
    packets, _ = parse_packets(b"".join(encode_packets([mine])))
    solo.endpoint.receive_packets([strange, stranger, *packets], solo.now)
    assert solo.events() == [Readable(solo.connection.id)]
    assert solo.endpoint.packets_discarded == 2


def test_a_stranger_is_answered_without_a_number() -> None:  # 3.9
    solo = Solo()
    solo.receive(Packet(DATA, 5, 6, 7, b"x"))
    (packet,) = solo.out()
    assert (packet.type, packet.source, packet.destination, packet.sequence) == (PacketType.ABORT, 6, 5, 0)


def test_every_stranger_counts() -> None:
    solo = Solo()
    for destination in (6, 7, 0, 0):
        solo.receive(Packet(DATA, 5, destination, 7, b"x"))
    assert solo.endpoint.packets_discarded == 4


def test_a_first_number_is_any_of_32_bits_beyond_the_first_round() -> None:  # 1.6
    class Fixed(Random):
        def getrandbits(self, bits: int) -> int:
            return (1 << bits) - 1

    assert Endpoint(EndpointConfig(), Fixed()).new_sequence() == (1 << 32) + (1 << 32) - 1


def test_who_was_first_is_first_when_both_are_due() -> None:
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


def test_a_trace_says_all_of_a_packet() -> None:
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


def test_a_trace_says_who_spoke_to_whom_and_what_the_timers_stand_at() -> None:
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


def test_an_endpoint_without_a_name_has_none_in_its_trace() -> None:
    assert Solo().endpoint.name == "solo"
    assert Endpoint(EndpointConfig(), Random(1)).name == ""
