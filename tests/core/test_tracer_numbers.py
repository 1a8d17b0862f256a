"""The exact numbers in an endpoint's trace: samples, limits, repeats, and runs of packets beyond a gap."""

import pytest

from tests.core.rig import Sink, acknowledge, data, opened
from tests.core.solo import BIG, MS, PEER, Solo
from tunnel.core.constants import SECOND_US
from tunnel.core.send.window import NO_EDGE
from tunnel.traces.record import TraceCause, TraceEvent, TraceLevel, TraceRecord
from tunnel.wire import Ack, Packet, PacketType, encode_ack, encode_edge, wrap
from tunnel.wire.control import Edge

DATA, ACK = PacketType.DATA, PacketType.ACK


def test_a_repeat_is_recorded_with_its_cause_and_its_backoff() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.wait(SECOND_US)
    solo.out()
    again = sink.of(TraceEvent.PACKET_SENT)[-1]
    assert (again.attempt, again.cause, again.backoff) == (1, TraceCause.RETRANSMIT_TIMEOUT, 1)


def test_a_repeated_answer_that_was_never_lost_has_no_cause() -> None:
    sink = Sink()
    solo = Solo(trace=sink).served()
    sink.clear()
    solo.request(solo.connection.identity.target)
    assert solo.types()[0] == PacketType.ACCEPTED
    again = sink.of(TraceEvent.PACKET_SENT)[0]
    assert (again.packet_type, again.attempt, again.cause) == (PacketType.ACCEPTED, 1, "")


def test_a_packet_of_the_relay_is_recorded_with_the_peer_of_the_connection() -> None:
    solo, sink = opened()
    solo.relay(PacketType.EDGE, encode_edge(Edge(wrap(solo.connection.sender.window.edge_sequence), 500)))
    assert sink.only(TraceEvent.PACKET_RECEIVED).peer == PEER


def test_a_packet_before_the_peer_is_known_is_recorded_with_its_source() -> None:
    sink = Sink()
    solo = Solo(trace=sink).connect()
    solo.receive(Packet(DATA, PEER, solo.connection.id, 1, b"early"))
    assert sink.only(TraceEvent.PACKET_RECEIVED).peer == PEER


# acknowledgements


def test_an_acknowledgement_records_the_bytes_in_flight_and_the_bytes_that_wait() -> None:
    solo, sink = opened()
    window = solo.connection.sender.window
    window.peer_edge = 3000
    sizes = (1000, 2000)
    for size in sizes:
        solo.connection.write(bytes(size), solo.now)
        solo.out()
    solo.connection.write(bytes(70), solo.now)
    window.edge_bytes = window.edge_used
    solo.say(ACK, encode_ack(Ack(wrap(window.oldest), 2000, 0, wrap(window.oldest), 0, [])))
    record = sink.only(TraceEvent.PACKETS_ACKED)
    assert (record.size_bytes, record.in_flight_bytes, record.backlog_bytes) == (1000, 2000, 70)
    assert (record.window_bytes, record.edge_bytes) == (0, 1000)


@pytest.mark.parametrize(
    ("edge_bytes", "told"),
    [(NO_EDGE, -1), (NO_EDGE - 1, NO_EDGE - 1 - 2000), (2000, 0), (1999, 0), (2001, 1)],
    ids=["none", "the largest", "used up", "beyond", "one byte"],
)
def test_an_acknowledgement_records_the_room_at_the_relay(edge_bytes: int, told: int) -> None:
    solo, sink = opened()
    window = solo.connection.sender.window
    for size in (1000, 2000):
        solo.connection.write(bytes(size), solo.now)
        solo.out()
    window.edge_bytes = edge_bytes
    solo.say(ACK, encode_ack(Ack(wrap(window.oldest), BIG, 0, wrap(window.oldest), 0, [])))
    assert sink.only(TraceEvent.PACKETS_ACKED).edge_bytes == told


def test_an_echo_of_a_packet_acknowledged_before_gives_no_sample() -> None:
    solo, sink = opened()
    window = solo.connection.sender.window
    for _ in range(2):
        solo.connection.write(b"abc", solo.now)
        solo.out()
    first = wrap(window.oldest)
    solo.wait(20 * MS)
    solo.say(ACK, encode_ack(Ack(first, BIG, 0, first, 0, [])))
    solo.say(ACK, encode_ack(Ack(wrap(window.oldest), BIG, 0, first, 0, [])))
    assert [record.rtt_us for record in sink.of(TraceEvent.PACKETS_ACKED)] == [20 * MS, 0]


def test_the_sample_of_a_repeat_belongs_to_the_echoed_attempt() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.wait(SECOND_US)
    solo.out()
    solo.wait(30 * MS)
    acknowledge(solo, attempt=1)
    assert sink.only(TraceEvent.PACKETS_ACKED).rtt_us == 30 * MS
    assert solo.connection.sender.rtt.latest_us == 30 * MS


def test_the_smallest_sample_is_a_microsecond() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    acknowledge(solo)
    assert sink.only(TraceEvent.PACKETS_ACKED).rtt_us == 1
    assert solo.connection.sender.rtt.latest_us == 1


def test_a_packet_acknowledged_before_its_receipt_gives_no_sample() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    assert solo.endpoint.next_batch(4096, solo.now) is not None
    solo.wait(20 * MS)
    acknowledge(solo)
    assert sink.only(TraceEvent.PACKETS_ACKED).rtt_us == 0
    assert solo.connection.sender.rtt.latest_us == 0


def test_a_receipt_at_time_zero_gives_a_sample() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    batch = solo.endpoint.next_batch(4096, solo.now)
    assert batch is not None
    solo.endpoint.batch_done(batch.token, True, 0)
    acknowledge(solo)
    assert sink.only(TraceEvent.PACKETS_ACKED).rtt_us == solo.now
    assert solo.connection.sender.rtt.latest_us == solo.now


# timers and ends


def test_all_timers_that_are_due_are_named() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.receive(data(solo, 1, b"hello"))
    solo.endpoint.handle_timeout(solo.now + 10 * SECOND_US)
    assert sink.only(TraceEvent.TIMER_UPDATED).text == "ack_delay retransmit"


def test_a_timer_that_fires_on_time_has_no_lateness() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    due_us = solo.endpoint.next_timeout()
    assert due_us is not None
    solo.endpoint.handle_timeout(due_us)
    record = sink.only(TraceEvent.TIMER_UPDATED)
    assert (record.text, record.latency_us) == ("retransmit", 0)


def test_the_records_of_an_end_have_no_other_fields() -> None:
    solo, sink = opened(TraceLevel.CONNECTION)
    solo.connection.write(b"abc", solo.now)
    solo.connection.abort(solo.now)
    assert sink.of(TraceEvent.STREAM_DATA_MOVED)[0] == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.STREAM_DATA_MOVED,
        connection=solo.connection.id,
        peer=PEER,
        cause=TraceCause.APPLICATION_TO_TRANSPORT,
        size_bytes=3,
    )
    assert sink.only(TraceEvent.CONNECTION_CLOSED) == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.CONNECTION_CLOSED,
        connection=solo.connection.id,
        peer=PEER,
        reason="aborted",
    )


def test_each_run_of_packets_beyond_a_gap_is_recorded_once() -> None:
    solo, sink = opened()
    first = solo.connection.sender.window.next_sequence
    for _ in range(8):
        solo.connection.write(b"x", solo.now)
        solo.out()

    def acknowledge(upto: int, *ranges: tuple[int, int]) -> None:
        newest = max([upto, *(end for _, end in ranges)])
        told = [(wrap(first + begin), wrap(first + end)) for begin, end in ranges]
        solo.say(ACK, encode_ack(Ack(wrap(first + upto), BIG, 0, wrap(first + newest), 0, told)))

    acknowledge(0, (6, 6), (2, 3))
    runs = [(record.sequence, record.count) for record in sink.of(TraceEvent.PACKETS_SACKED)]
    assert runs == [(wrap(first + 2), 2), (wrap(first + 6), 1)]
    assert sink.only(TraceEvent.PACKETS_ACKED).count == 4
    sink.clear()
    acknowledge(4, (6, 7))
    assert [(record.sequence, record.count) for record in sink.of(TraceEvent.PACKETS_SACKED)] == [(wrap(first + 7), 1)]
    sink.clear()
    acknowledge(7)
    assert sink.of(TraceEvent.PACKETS_SACKED) == []
