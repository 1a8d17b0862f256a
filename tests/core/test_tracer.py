"""The records that an endpoint writes to its trace, one by one."""

from tests.core.rig import ACK, DATA, Sink, acknowledge, data, opened
from tests.core.solo import FIRST, MS, PEER, Solo
from tunnel.core import EndpointConfig
from tunnel.core.constants import ACK_DELAY_US, SECOND_US
from tunnel.core.send.window import NO_EDGE
from tunnel.traces.record import TraceCause, TraceEvent, TraceLevel, TraceReason, TraceRecord
from tunnel.wire import Packet, PacketType, encode_edge, wrap
from tunnel.wire.control import Edge


def test_without_a_sink_or_at_level_off_there_is_no_tracer() -> None:
    assert Solo().endpoint.tracer is None
    assert Solo(trace=Sink(TraceLevel.OFF)).endpoint.tracer is None
    assert Solo(trace=Sink(TraceLevel.CONNECTION)).endpoint.tracer is not None


def test_a_batch_and_its_packets_are_recorded() -> None:
    solo, sink = opened()
    assert solo.endpoint.tracer is not None
    solo.endpoint.tracer.carrier = "link"
    solo.connection.write(b"abc", solo.now)
    window = solo.connection.sender.window
    batch = solo.endpoint.next_batch(4096, solo.now)
    assert batch is not None
    assert sink.only(TraceEvent.BATCH_SENT) == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.BATCH_SENT,
        batch=batch.token,
        count=len(batch.packets),
        size_bytes=batch.size,
        carrier="link",
    )
    rtt = solo.connection.sender.rtt
    assert sink.of(TraceEvent.PACKET_SENT)[-1] == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.PACKET_SENT,
        connection=solo.connection.id,
        peer=PEER,
        packet_type=DATA,
        sequence=batch.packets[-1].sequence,
        size_bytes=batch.packets[-1].size,
        srtt_us=rtt.srtt_us,
        rto_us=rtt.rto_us(),
        window_bytes=window.peer_edge - 3,
        in_flight_bytes=3,
        edge_bytes=window.edge_bytes - 3,
        batch=batch.token,
        carrier="link",
    )
    solo.endpoint.batch_done(batch.token, True, solo.now + 7)
    assert sink[-1] == TraceRecord(
        time_us=solo.now + 7,
        node="solo",
        event=TraceEvent.BATCH_RECEIPTED,
        batch=batch.token,
        latency_us=7,
        carrier="link",
    )
    solo.endpoint.batch_done(batch.token, True, solo.now + 8)  # reported twice, recorded once
    assert len(sink.of(TraceEvent.BATCH_RECEIPTED)) == 1


def test_a_batch_that_was_given_up_is_recorded() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    batch = solo.endpoint.next_batch(4096, solo.now)
    assert batch is not None
    solo.endpoint.batch_done(batch.token, False, solo.now + 5)
    assert sink.only(TraceEvent.BATCH_GIVEN_UP).latency_us == 5
    solo.out()
    again = sink.of(TraceEvent.PACKET_SENT)[-1]
    assert (again.attempt, again.cause) == (1, TraceCause.BATCH_GIVEN_UP)


def test_an_unknown_edge_is_recorded_as_minus_one_and_a_used_up_edge_as_zero() -> None:
    solo, sink = opened()
    window = solo.connection.sender.window
    window.edge_bytes = NO_EDGE
    solo.connection.write(b"a" * 2000, solo.now)
    solo.out()
    assert sink.of(TraceEvent.PACKET_SENT)[-1].edge_bytes == -1
    window.edge_bytes = 100
    window.lose(next(iter(window.outstanding.values())), TraceCause.PTO_PROBE)
    window.edge_used = 0
    solo.endpoint.touch(solo.connection)
    solo.out()
    assert sink.of(TraceEvent.PACKET_SENT)[-1].edge_bytes == 0


def test_a_closed_window_and_the_bytes_that_wait_for_it_are_recorded() -> None:
    solo, sink = opened()
    window = solo.connection.sender.window
    window.peer_edge = 1000
    solo.connection.write(b"a" * 1500, solo.now)
    solo.out()
    record = sink.of(TraceEvent.PACKET_SENT)[-1]
    assert (record.window_bytes, record.in_flight_bytes, record.backlog_bytes) == (0, 1000, 500)
    window.peer_edge = 900  # cannot happen, and must not be recorded as a negative number
    window.lose(next(iter(window.outstanding.values())), TraceCause.PTO_PROBE)
    solo.endpoint.touch(solo.connection)
    solo.out()
    assert sink.of(TraceEvent.PACKET_SENT)[-1].window_bytes == 0


def test_a_received_packet_is_recorded() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, b"one"))
    expected = TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.PACKET_RECEIVED,
        connection=solo.connection.id,
        peer=PEER,
        packet_type=DATA,
        sequence=wrap(FIRST + 1),
        size_bytes=27,
    )
    assert sink == [expected]


def test_a_packet_beyond_a_gap_is_recorded_as_buffered_and_others_are_not() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 3, b"three"))
    buffered = sink.only(TraceEvent.PACKET_BUFFERED)
    assert (buffered.sequence, buffered.size_bytes) == (wrap(FIRST + 3), 29)
    solo.receive(data(solo, 1, b"one"))  # the gap is smaller now, and this one need not wait
    solo.receive(data(solo, 2, b"two"))
    assert len(sink.of(TraceEvent.PACKET_BUFFERED)) == 1


def test_a_control_packet_is_not_recorded_as_buffered() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 3, b"three"))
    solo.receive(Packet(PacketType.PING, PEER, solo.connection.id, wrap(FIRST + 9)))
    assert len(sink.of(TraceEvent.PACKET_BUFFERED)) == 1


def test_duplicate_and_refused_packets_are_recorded_with_their_reason() -> None:
    solo, sink = opened()
    solo.receive(data(solo, 1, b"one"))
    solo.receive(data(solo, 1, b"one", attempt=1))
    duplicate = sink.only(TraceEvent.PACKET_DROPPED)
    assert (duplicate.reason, duplicate.attempt) == (TraceReason.DUPLICATE, 1)
    sink.clear()
    solo.receive(data(solo, 1_000_000, b"far"))
    assert sink.only(TraceEvent.PACKET_DROPPED).reason == TraceReason.OUTSIDE_WINDOW
    sink.clear()
    solo.receive(Packet(ACK, PEER, solo.connection.id, 0, b"?"))
    assert sink.only(TraceEvent.PACKET_DROPPED).reason == TraceReason.INVALID


def test_a_packet_of_an_unknown_connection_is_recorded_as_dropped() -> None:
    solo, sink = opened()
    packet = Packet(DATA, 5, 6, 7, b"x", 2)
    solo.receive(packet)
    assert sink == [
        TraceRecord(
            time_us=solo.now,
            node="solo",
            event=TraceEvent.PACKET_DROPPED,
            connection=6,
            peer=5,
            packet_type=DATA,
            sequence=7,
            attempt=2,
            size_bytes=packet.size,
            reason=TraceReason.CONNECTION_UNKNOWN,
        )
    ]
    before = solo.endpoint.packets_discarded
    solo.receive(Packet(PacketType.ABORT, 5, 6, 7, b""))
    odd = Packet(DATA, 5, 6, 7, b"x")
    odd.version = 9
    solo.receive(odd)
    assert solo.endpoint.packets_discarded == before + 2
    assert len(sink.of(TraceEvent.PACKET_DROPPED)) == 3


def test_an_acknowledgement_is_recorded_with_its_sample() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    sent = solo.out()[-1]
    solo.wait(20 * MS)
    sink.clear()
    acknowledge(solo, delay_us=5 * MS)
    sender = solo.connection.sender
    assert sink.only(TraceEvent.PACKETS_ACKED) == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.PACKETS_ACKED,
        connection=solo.connection.id,
        peer=PEER,
        sequence=sent.sequence,
        size_bytes=3,
        count=1,
        rtt_us=15 * MS,
        srtt_us=sender.rtt.srtt_us,
        rto_us=sender.rtt.rto_us(),
        window_bytes=sender.window.peer_edge - 3,
        edge_bytes=sender.window.edge_bytes - sender.window.edge_used,
    )
    assert sender.rtt.latest_us == 15 * MS
    sink.clear()
    acknowledge(solo)  # acknowledges nothing new
    assert sink.of(TraceEvent.PACKETS_ACKED) == []
    assert ACK_DELAY_US > 5 * MS


def test_the_newest_of_several_packets_gives_the_sample() -> None:
    solo, sink = opened()
    for wait_us in (4 * MS, 20 * MS):
        solo.connection.write(b"abc", solo.now)
        solo.out()
        solo.wait(wait_us)
    sink.clear()
    acknowledge(solo)
    record = sink.only(TraceEvent.PACKETS_ACKED)
    assert (record.count, record.rtt_us) == (2, 20 * MS)


def test_a_needless_repeat_and_its_recovery_are_recorded() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    sent = solo.out()[-1]
    solo.wait(SECOND_US)
    assert solo.out()[-1].attempt == 1
    sink.clear()
    acknowledge(solo)
    expected = TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.SPURIOUS_RETRANSMIT,
        connection=solo.connection.id,
        peer=PEER,
        packet_type=DATA,
        sequence=sent.sequence,
        attempt=1,
        size_bytes=3,
        cause=TraceCause.RETRANSMIT_TIMEOUT,
    )
    assert sink.only(TraceEvent.SPURIOUS_RETRANSMIT) == expected
    recovered = sink.only(TraceEvent.PACKET_RECOVERED)
    assert (recovered.sequence, recovered.attempt, recovered.cause) == (sent.sequence, 1, "retransmit_timeout")
    assert solo.connection.stats.packets_spurious == 1


def test_a_repeat_that_was_needed_is_not_recorded_as_spurious() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.wait(SECOND_US)
    solo.out()
    sink.clear()
    acknowledge(solo, attempt=1)
    assert sink.of(TraceEvent.SPURIOUS_RETRANSMIT) == []
    assert sink.only(TraceEvent.PACKET_RECOVERED).attempt == 1


def test_an_echo_of_an_attempt_that_never_left_gives_no_sample() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    acknowledge(solo, attempt=3)
    assert sink.only(TraceEvent.PACKETS_ACKED).rtt_us == 0
    assert sink.of(TraceEvent.SPURIOUS_RETRANSMIT) == []


def test_a_timer_is_recorded_with_its_lateness() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    due_us = solo.endpoint.next_timeout()
    assert due_us is not None
    sink.clear()
    solo.endpoint.handle_timeout(due_us + 9)
    record = sink.only(TraceEvent.TIMER_UPDATED)
    assert (record.cause, record.latency_us, record.connection) == (TraceCause.EXPIRED, 9, solo.connection.id)
    assert record.text == "retransmit"
    assert record.peer == PEER


def test_the_end_of_a_connection_is_recorded_with_its_state_and_totals() -> None:
    solo, sink = opened(TraceLevel.CONNECTION)
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.receive(data(solo, 1, b"hello"))
    solo.connection.read(2, solo.now)
    solo.wait(SECOND_US)
    solo.out()
    solo.connection.abort(solo.now)
    state = sink.only(TraceEvent.CONNECTION_STATE_UPDATED)
    assert state == TraceRecord(
        time_us=solo.now,
        node="solo",
        event=TraceEvent.CONNECTION_STATE_UPDATED,
        connection=solo.connection.id,
        peer=PEER,
        srtt_us=solo.connection.sender.rtt.srtt_us,
        rto_us=solo.connection.sender.rtt.rto_us(),
        backoff=1,
        text="closed",
    )
    totals = {record.cause: (record.size_bytes, record.count) for record in sink.of(TraceEvent.STREAM_DATA_MOVED)}
    assert totals == {
        TraceCause.APPLICATION_TO_TRANSPORT: (3, 0),
        TraceCause.TRANSPORT_TO_NETWORK: (6, 2),
        TraceCause.NETWORK_TO_TRANSPORT: (5, solo.connection.stats.packets_received),
        TraceCause.TRANSPORT_TO_APPLICATION: (2, 0),
    }
    closed = sink.only(TraceEvent.CONNECTION_CLOSED)
    assert (closed.reason, closed.count, closed.connection, closed.peer) == ("aborted", 1, solo.connection.id, PEER)
    assert {record.event for record in sink} == {
        TraceEvent.CONNECTION_STATE_UPDATED,
        TraceEvent.STREAM_DATA_MOVED,
        TraceEvent.CONNECTION_CLOSED,
    }


def test_at_connection_level_no_packet_is_recorded() -> None:
    solo, sink = opened(TraceLevel.CONNECTION)
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.receive(data(solo, 3, b"three"))
    solo.receive(data(solo, 3, b"three"))
    solo.receive(Packet(DATA, 5, 6, 7, b"x"))
    acknowledge(solo)
    solo.wait(SECOND_US)
    assert sink == []


def test_an_end_without_an_error_is_recorded_as_clean() -> None:
    sink = Sink()
    solo = Solo(EndpointConfig(exit=True), trace=sink)
    solo.connect()
    solo.connection.close(solo.now)
    solo.out()
    solo.connection.owner.forget(solo.connection, solo.now)
    assert sink.only(TraceEvent.CONNECTION_CLOSED).reason == "clean"


def test_the_edge_that_the_relay_announced_is_recorded() -> None:
    solo, sink = opened()
    solo.connection.write(b"abc", solo.now)
    sent = solo.out()[-1]
    edge = encode_edge(Edge(sent.sequence, 500))
    solo.receive(Packet(PacketType.EDGE, 0, solo.connection.id, 0, edge))
    acknowledge(solo)
    assert sink.only(TraceEvent.PACKETS_ACKED).edge_bytes == 500
