"""A connection as the application uses it: commands and their errors, timers, the user timeout, the route."""

import pytest

from tests.core.solo import MS, NO_ROUTE, PEER, SERVICE, TARGET, Solo, payload
from tunnel.core import (
    Closed,
    EndpointConfig,
    Flushed,
    LocalProtocolError,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Readable,
    Refused,
    State,
    Writable,
)
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.wire import (
    Abort,
    AbortReason,
    Accepted,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    decode_abort,
    decode_connect,
    decode_end,
    decode_option,
    encode_abort,
    encode_accepted,
    encode_rejected,
)

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
OPTION, CONNECT, ABORT, SHUTDOWN = PacketType.OPTION, PacketType.CONNECT, PacketType.ABORT, PacketType.SHUTDOWN
TIMEOUT_US = 300 * SECOND_US


# commands


def test_a_command_that_the_state_forbids_raises_and_changes_nothing() -> None:
    solo = Solo()
    solo.request()
    connection = solo.connection
    for command in (connection.finish, connection.close):
        with pytest.raises(LocalProtocolError, match="before accept"):
            command(solo.now)
    with pytest.raises(LocalProtocolError, match="before accept"):
        connection.write(b"x", solo.now)
    with pytest.raises(ValueError, match="too long"):
        connection.refuse(RejectReason.REFUSED, "x" * 70_000, solo.now)
    with pytest.raises(ValueError, match="too long"):
        connection.abort(solo.now, AbortReason.APPLICATION, "x" * 70_000)
    assert connection.state is State.REQUESTED
    connection.accept(solo.now)
    with pytest.raises(LocalProtocolError, match="accept"):
        connection.accept(solo.now)
    with pytest.raises(LocalProtocolError, match="refuse"):
        connection.refuse(RejectReason.REFUSED, "", solo.now)
    connection.finish(solo.now)
    connection.finish(solo.now)
    with pytest.raises(LocalProtocolError, match="after finish"):
        connection.write(b"x", solo.now)
    connection.abort(solo.now)
    for done in (connection.finish, connection.close, connection.abort):
        done(solo.now)
    with pytest.raises(PeerClosedError):
        connection.write(b"x", solo.now)


def test_reading_gives_the_stream_and_its_end_once() -> None:  # 5.5
    solo = Solo().opened()
    connection = solo.connection
    assert connection.read(10, solo.now) == b""
    solo.data(0, b"abc")
    assert connection.readable
    solo.end(1, FINISH)
    assert connection.read(2, solo.now) == b"ab"
    assert not connection.at_eof
    assert connection.read(2, solo.now) == b"c"
    assert connection.at_eof
    assert connection.read(2, solo.now) == b""
    assert solo.events() == [Readable(connection.id), PeerFinished(connection.id)]
    assert connection.write(b"still open", solo.now) == 10


def test_abort_ends_both_sides() -> None:  # 5.8
    solo = Solo().opened()
    solo.connection.abort(solo.now, AbortReason.SHUTTING_DOWN, "text")
    assert solo.event(Lost) == Lost(solo.connection.id, LostReason.ABORTED, "text")
    assert decode_abort(payload(solo.out(), ABORT)) == Abort(AbortReason.SHUTTING_DOWN, "text")


def test_early_data_leaves_with_connect_and_finish_waits_for_the_answer() -> None:  # 3.6
    solo = Solo()
    connection = solo.endpoint.connect(SERVICE, solo.now)
    solo.connection = connection
    assert connection.write(bytes(100_000), solo.now) == 100_000
    connection.finish(solo.now)
    packets = solo.out()
    assert packets[0].type == CONNECT
    assert {packet.destination for packet in packets} == {0}
    assert sum(len(packet.payload) for packet in packets[1:]) == 64 * 1024
    assert FINISH not in [packet.type for packet in packets]
    connect = decode_connect(packets[0].payload)
    assert connect is not None
    solo.route_key = connect.route_key
    solo.answer()
    later = solo.out()
    assert [packet.type for packet in later][-1] == FINISH
    assert {packet.destination for packet in later} == {PEER}
    assert sum(len(packet.payload) for packet in later if packet.type == DATA) == 100_000 - 64 * 1024


def test_a_repeated_answer_is_acknowledged() -> None:  # 1.7
    solo = Solo().opened()
    solo.answer()
    assert solo.types() == [ACK]
    assert solo.connection.stats.packets_duplicate == 1


# the route


def test_connect_is_repeated_when_the_relay_restarts_before_the_answer() -> None:
    solo = Solo().connect()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.endpoint.attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.types() == [CONNECT, DATA]


def test_a_request_keeps_waiting_for_the_application_when_the_relay_restarts() -> None:
    solo = Solo()
    solo.request()
    solo.endpoint.attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.connection.handshake.suspended_since_us == NEVER_US
    assert solo.out() == []


def test_a_late_rejection_of_an_open_connection_is_ignored() -> None:
    solo = Solo().opened()
    answer = encode_rejected(Rejected(solo.route_key, RejectReason.GONE))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))
    assert solo.in_state(State.OPEN)


def test_pull_intervals_are_announced_and_learned() -> None:  # 2.7, 4.6
    solo = Solo().connect()
    solo.endpoint.carrier_changed(1, 500 * MS, solo.now)
    assert solo.out() == []
    solo.answer(Options(pull_interval_ms=1000))
    assert solo.connection.sender.rtt.pull_interval_us == 1500 * MS
    solo.out()
    solo.endpoint.carrier_changed(1, 250 * MS, solo.now)
    solo.endpoint.carrier_changed(2, 250 * MS, solo.now)
    option = decode_option(payload(solo.out(), OPTION))
    assert option is not None
    assert (option.version, option.options) == (1, Options(pull_interval_ms=250))
    assert solo.connection.sender.rtt.pull_interval_us == 1250 * MS
    solo.answer(Options(pull_interval_ms=2**32 - 1))
    assert solo.connection.sender.rtt.pull_interval_us == 1250 * MS


# statistics


def test_a_snapshot_counts_written_carried_received_and_acknowledged_bytes() -> None:
    solo = Solo().opened(TARGET)
    solo.data(0, b"abcdef")
    solo.connection.read(2, solo.now)
    solo.connection.write(bytes(10), solo.now)
    solo.out()
    solo.connection.write(bytes(3), solo.now)
    stats = solo.connection.snapshot()
    assert (stats.bytes_written, stats.bytes_buffered, stats.bytes_carried, stats.bytes_receipted) == (13, 3, 10, 10)
    assert (stats.bytes_received, stats.bytes_delivered, stats.receive_buffer_bytes) == (6, 2, 4)
    assert (stats.in_flight_packets, stats.bytes_acknowledged, stats.packets_sent) == (1, 0, 1)
    assert (stats.srtt_us, stats.rto_us, stats.backoff) == (0, SECOND_US, 0)
    solo.ack(window=50)
    assert solo.connection.snapshot().bytes_acknowledged == 10
    assert solo.connection.snapshot().window_bytes == (1 << 24) - 10


def test_a_snapshot_has_the_round_trip_to_the_peer_with_the_way_to_the_relay() -> None:
    solo = Solo().opened(TARGET)
    assert solo.connection.snapshot().round_trip_us == 0
    solo.endpoint.carrier.round_trip_us = 7000
    solo.connection.sender.rtt.sample(40)
    stats = solo.connection.snapshot()
    assert (stats.srtt_us, stats.round_trip_us) == (40, 7040)


# the peer's CLOSE


def test_data_that_the_peers_close_names_as_received_is_acknowledged() -> None:  # 5.4
    solo = Solo().opened()
    connection = solo.connection
    connection.write(b"abc", solo.now)
    solo.out()
    last = connection.sender.window.next_sequence - 1
    solo.end(0, received=last & 0xFFFFFFFF)
    assert solo.events() == [PeerClosed(connection.id, 0), PeerFinished(connection.id), Closed(connection.id)]


@pytest.mark.parametrize("received", [None, 5])
def test_data_that_the_peers_close_does_not_name_is_reported_as_lost(received: int | None) -> None:  # 5.4
    solo = Solo().opened()
    connection = solo.connection
    connection.write(b"abc", solo.now)
    solo.end(0, received=received)
    assert solo.events() == [
        PeerClosed(connection.id, 3),
        PeerFinished(connection.id),
        Lost(connection.id, LostReason.PEER_CLOSED, "3 bytes were not acknowledged"),
    ]


# time


def test_a_resume_sends_unacknowledged_data_again() -> None:  # 4.10, 6.6
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.answer(resumed=True)
    assert solo.types() == [ACK, DATA]
    assert solo.connection.stats.resent_by_cause == {"route_resumed": 1}


def test_a_repeated_connect_of_an_acceptor_without_a_route_resumes_it() -> None:  # 3.3
    solo = Solo().served()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.request(SERVICE)
    assert solo.connection.handshake.suspended_since_us == NEVER_US
    assert solo.types() == [PacketType.ACCEPTED, ACK]


def test_the_smaller_of_both_user_timeouts_applies() -> None:  # 4.15
    solo = Solo().connect()
    solo.answer(Options(user_timeout_ms=10_000))
    solo.connection.write(b"x", solo.now)
    solo.wait(10 * SECOND_US)
    assert [event for event in solo.events() if isinstance(event, Lost)]


def test_a_resume_starts_the_drain_again() -> None:  # 5.7
    solo = Solo().served()
    solo.end(0)
    solo.out()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.wait(30 * SECOND_US)
    solo.request(SERVICE, resume=True, destination=solo.connection.id)
    solo.wait(59 * SECOND_US)
    assert solo.in_state(State.DRAIN)


def test_drain_ends_after_the_user_timeout() -> None:  # 5.7
    solo = Solo().opened()
    solo.end(0)
    solo.out()
    solo.events()
    solo.wait(300 * SECOND_US - 1)
    assert solo.in_state(State.DRAIN)
    solo.wait(1)
    assert solo.in_state(State.CLOSED)
    assert solo.types() == [SHUTDOWN]
    assert solo.events() == []
    solo.connection.handle_timeout(solo.now)
    assert solo.endpoint.next_timeout() is None


# other effects of packets


def test_a_full_send_buffer_reports_when_it_has_room_again() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=10)).opened()
    assert solo.connection.write(bytes(20), solo.now) == 10
    solo.out()
    assert solo.connection.write(b"x", solo.now) == 0
    assert solo.connection.unacknowledged_bytes == 10
    solo.ack(window=5)
    assert solo.events() == [Writable(solo.connection.id), Flushed(solo.connection.id)]


def test_a_large_read_announces_the_opened_window() -> None:  # 4.12
    solo = Solo().opened()
    solo.data(0, bytes(100_000))
    solo.wait(25 * MS)
    solo.out()
    solo.connection.read(1, solo.now)
    assert solo.out() == []
    solo.connection.read(100_000, solo.now)
    assert solo.acked().window == 256 * 1024


def test_packets_held_for_the_answer_are_processed_after_it() -> None:  # 3.7
    solo = Solo().connect()
    solo.data(0, b"abc")
    solo.connection.close(solo.now)
    solo.answer(Options(packet_bytes_max=2000))
    assert solo.connection.handshake.peer_packet_bytes_max == 2000
    end = decode_end(payload(solo.out(), CLOSE))
    assert end is not None
    assert end.received == 2**32 - 2  # only ACCEPTED had been received


@pytest.mark.parametrize("reason", [RejectReason.GONE, RejectReason.BUSY])
def test_a_resume_refused_as_gone_ends_the_connection_and_as_busy_does_not(reason: RejectReason) -> None:  # 6.8
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    answer = encode_rejected(Rejected(solo.route_key, reason, ""))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))
    assert solo.connection.state is (State.CLOSED if reason == RejectReason.GONE else State.OPEN)


def test_an_answer_from_a_second_acceptor_ends_the_connection() -> None:
    solo = Solo().opened()
    payload = encode_accepted(Accepted(solo.route_key, False, 1, Options()))
    solo.receive(Packet(PacketType.ACCEPTED, solo.connection.id, PEER + 1, 5, payload))
    assert [(packet.type, packet.destination) for packet in solo.out()] == [(PacketType.ABORT, PEER + 1)]
    assert solo.event(Lost).reason is LostReason.GONE
    solo.connection.fail(LostReason.GONE, None, solo.now)
    assert solo.events() == []


def test_requests_wait_for_the_application_and_unanswered_connects_time_out() -> None:  # 3.3, 4.15
    solo = Solo()
    solo.request()
    solo.request()
    solo.wait(2 * TIMEOUT_US)
    assert solo.in_state(State.REQUESTED)
    solo.endpoint.refuse(solo.connection.id, RejectReason.TIMED_OUT, "", solo.now)
    assert solo.types() == [PacketType.REJECTED]
    early = Solo().connect()
    early.wait(TIMEOUT_US)
    assert early.event(Lost).reason is LostReason.TIMEOUT


def test_a_malformed_ack_is_discarded_and_a_repeated_connect_is_answered() -> None:
    solo = Solo().served()
    solo.ack(-1)
    assert solo.connection.stats.packets_discarded == 1
    solo.request(SERVICE)
    assert solo.types() == [PacketType.ACCEPTED]
    fresh = Solo()
    fresh.request()
    fresh.endpoint.accept(fresh.connection.id, fresh.now)
    fresh.out()
    fresh.request()
    assert fresh.types() == [PacketType.ACCEPTED]


def test_received_data_can_be_read_after_the_peer_has_forgotten_us() -> None:  # 5.8
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.end(1, FINISH)
    solo.end(2)
    solo.say(ABORT, encode_abort(Abort(AbortReason.NO_SUCH_CONNECTION)))
    assert solo.connection.read(3, solo.now) == b"abc"
    kinds = [type(event) for event in solo.events()]
    assert kinds == [Readable, PeerClosed, PeerFinished, Closed]


def test_the_end_is_reported_once() -> None:  # 5.5
    solo = Solo().opened()
    solo.end(0, FINISH)
    solo.end(1)
    assert [type(event) for event in solo.events()] == [PeerFinished, PeerClosed, Closed]


def test_our_close_ends_the_connection_when_it_is_acknowledged() -> None:  # 5.2, 5.3
    solo = Solo().opened()
    solo.connection.close(solo.now)
    assert solo.types() == [CLOSE]
    solo.ack()
    assert solo.events() == [Closed(solo.connection.id)]


def test_a_refused_connect_is_reported_with_its_reason() -> None:
    solo = Solo().connect()
    answer = encode_rejected(Rejected(solo.route_key, RejectReason.BUSY, "text"))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))
    assert solo.event(Refused) == Refused(solo.connection.id, RejectReason.BUSY, "text")


def test_a_ping_is_sent_after_a_minute_of_silence() -> None:  # 4.16
    solo = Solo().opened()
    solo.wait(60 * SECOND_US)
    assert solo.types() == [PacketType.PING]
