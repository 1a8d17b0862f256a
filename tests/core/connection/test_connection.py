"""A connection as the application uses it: commands and their errors, timers, the user timeout, the route."""

import pytest

from tests.core.solo import NO_ROUTE, PEER, SERVICE, TARGET, Solo
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
    encode_abort,
    encode_accepted,
    encode_rejected,
)

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
OPTION, CONNECT, ABORT, SHUTDOWN = PacketType.OPTION, PacketType.CONNECT, PacketType.ABORT, PacketType.SHUTDOWN
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


# time


def test_a_resume_sends_unacknowledged_data_again() -> None:  # 4.10, 6.6
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.answer(resumed=True)
    assert solo.types() == [ACK, DATA]
    assert solo.connection.stats.resent_by_cause == {"route_resumed": 1}


def test_the_smaller_of_both_user_timeouts_applies() -> None:  # 4.15
    solo = Solo().connect()
    solo.answer(Options(user_timeout_ms=10_000))
    solo.connection.write(b"x", solo.now)
    solo.wait(10 * SECOND_US)
    assert [event for event in solo.events() if isinstance(event, Lost)]


# other effects of packets


def test_a_full_send_buffer_reports_when_it_has_room_again() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=10)).opened()
    assert solo.connection.write(bytes(20), solo.now) == 10
    solo.out()
    assert solo.connection.write(b"x", solo.now) == 0
    assert solo.connection.unacknowledged_bytes == 10
    solo.ack(window=5)
    assert solo.events() == [Writable(solo.connection.id), Flushed(solo.connection.id)]


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


def test_a_refused_connect_is_reported_with_its_reason() -> None:
    solo = Solo().connect()
    answer = encode_rejected(Rejected(solo.route_key, RejectReason.BUSY, "text"))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))
    assert solo.event(Refused) == Refused(solo.connection.id, RejectReason.BUSY, "text")
