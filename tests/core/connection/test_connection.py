"""A connection as the application uses it: commands and their errors, timers, the user timeout, the route."""

import re
from collections.abc import Callable

import pytest

from tests.core.solo import NO_ROUTE, PEER, SERVICE, TARGET, Solo
from tunnel.core import (
    Closed,
    Connection,
    EndpointConfig,
    Flushed,
    LocalProtocolError,
    Lost,
    LostReason,
    PeerClosed,
    PeerClosedError,
    PeerFinished,
    Readable,
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

CONNECT, FINISH, ABORT = PacketType.CONNECT, PacketType.FINISH, PacketType.ABORT
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


# the route


def test_a_request_keeps_waiting_for_the_application_when_the_relay_restarts() -> None:
    solo = Solo()
    solo.request()
    solo.endpoint.on_attached(True, 1 << 20, 1 << 20, solo.now)
    assert solo.connection.handshake.suspended_since_us == NEVER_US
    assert solo.out() == []


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


# other effects of packets


def test_received_data_can_be_read_after_the_peer_has_forgotten_us() -> None:  # 5.8
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.end(1, FINISH)
    solo.end(2)
    solo.say(ABORT, encode_abort(Abort(AbortReason.NO_SUCH_CONNECTION)))
    assert solo.connection.read(3, solo.now) == b"abc"
    kinds = [type(event) for event in solo.events()]
    assert kinds == [Readable, PeerClosed, PeerFinished, Closed]


@pytest.mark.parametrize("reason", RejectReason)
def test_the_reason_of_a_refused_resume_decides_whether_it_is_repeated(reason: RejectReason) -> None:  # 6.8
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    answer = encode_rejected(Rejected(solo.route_key, reason, "text"))
    solo.receive(Packet(PacketType.REJECTED, solo.connection.id, 0, 0, answer))
    if reason in (RejectReason.GONE, RejectReason.DENIED, RejectReason.FINISHED):
        assert solo.event(Lost) == Lost(solo.connection.id, LostReason.GONE, "text")
    else:
        assert solo.events() == []
        solo.wait(SECOND_US)
        assert CONNECT in solo.types()


# the end of an open connection


def test_losing_the_route_again_keeps_the_time_of_the_first_loss() -> None:
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.wait(5 * SECOND_US)
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    assert solo.connection.handshake.suspended_since_us == solo.now - 5 * SECOND_US


def test_writable_waits_until_enough_room_is_free() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=4096)).opened()
    connection = solo.connection
    connection.write(bytes(5000), solo.now)
    packets = solo.out(size=8192)
    assert [packet.size for packet in packets] == [1048] * 4
    solo.ack(3, window=4096)
    assert solo.events() == [Writable(connection.id)]
    connection.write(bytes(2000), solo.now)
    solo.out(size=8192 - 1024)
    solo.ack(3, window=4096)
    assert Writable(connection.id) in solo.events()


def test_two_users_the_send_buffer_grows_for_a_claimed_window_only_as_far_as_the_budget_grants() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=1000, budget_bytes=300_000)).opened()
    window, budget = solo.connection.sender.window, solo.endpoint.budget
    before = budget.granted_bytes
    solo.ack(window=2**31)
    assert (window.buffer_bytes_max, budget.granted_bytes) == (1000, before)  # nothing is written yet
    assert solo.connection.write(bytes(2000), solo.now) == 1000
    solo.ack(window=2**31)
    assert window.buffer_bytes_max == 1000 + 300_000 - before
    assert budget.granted_bytes == 300_000
    assert solo.connection.write(bytes(30_000), solo.now) == 30_000
    solo.ack(window=0)
    assert budget.granted_bytes == 300_000  # what is buffered stays charged
    solo.connection.abort(solo.now)
    assert budget.granted_bytes == 0


def test_two_users_what_a_service_keeps_for_one_who_reads_nothing_is_limited_by_the_budget() -> None:
    config = EndpointConfig(budget_bytes=8 * 2**20)
    solo = Solo(config)
    for number in range(10):
        solo.route_key = number.to_bytes(16, "big")
        solo.endpoint.listen(SERVICE.host, 99, solo.now)
        solo.request(SERVICE, Options(user="ann"))
        solo.out()
        solo.ack()
        while solo.connection.write(bytes(2**20), solo.now):
            solo.ack(window=0)
    kept = [connection.unacknowledged_bytes for connection in solo.endpoint.connections.values()]
    assert len(kept) == 10
    assert min(kept) == 256 * 1024  # the least that each connection has
    assert max(kept) > 2 * 2**20  # the first ones grow, as far as the user's share allows
    assert sum(kept) <= 10 * 256 * 1024 + config.budget_bytes // 2


def test_the_send_buffer_follows_the_peers_window_but_not_beyond_our_own_limit() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=1000)).opened()
    window = solo.connection.sender.window
    solo.ack(window=5000)
    assert window.buffer_bytes_max == 1000
    solo.connection.write(bytes(2000), solo.now)
    solo.ack(window=5000)
    assert window.buffer_bytes_max == 5000
    assert solo.connection.write(bytes(9000), solo.now) == 4000
    solo.ack(window=2**31)
    assert window.buffer_bytes_max == 16 * 2**20
    packets = solo.out(size=1 << 20)
    solo.ack(len(packets) - 1, window=10)
    assert window.buffer_bytes_max == 1000


def test_write_returns_how_much_it_took_and_writable_comes_when_a_quarter_is_free() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=4000)).opened()
    connection = solo.connection
    assert connection.write(bytes(3000), solo.now) == 3000
    assert connection.write(bytes(3000), solo.now) == 1000
    assert connection.write(b"x", solo.now) == 0
    assert connection.write(b"", solo.now) == 0  # writes nothing; Writable is still to come
    solo.out(size=8 * 999)
    connection.sender.window.acknowledge(connection.sender.window.oldest, [])
    solo.ack(window=0)
    assert solo.events() == [Writable(connection.id), Flushed(connection.id)]
    assert connection.unacknowledged_bytes == 0
    connection.write(b"x", solo.now)
    solo.out()
    solo.ack()
    assert solo.events() == [Flushed(connection.id)]


@pytest.mark.parametrize(
    ("reach", "command", "text"),
    [
        (State.REQUESTED, lambda c: c.write(b"x", 0), "write() after finish() or close(), or before accept()"),
        (State.REQUESTED, lambda c: c.finish(0), "finish() before accept(): accept or refuse the connection first"),
        (State.REQUESTED, lambda c: c.close(0), "close() before accept(): refuse it instead"),
        (
            State.OPEN,
            lambda c: c.accept(0),
            "accept() of a connection that the peer did not request, or that was answered",
        ),
        (
            State.OPEN,
            lambda c: c.refuse(RejectReason.BUSY, "", 0),
            "refuse() of a connection that the peer did not request, or that was answered",
        ),
    ],
)
def test_misuse_raises_and_names_the_mistake(reach: State, command: Callable[[Connection], object], text: str) -> None:
    solo = Solo()
    if reach is State.REQUESTED:
        solo.request(TARGET)
    else:
        solo.opened()
    with pytest.raises(LocalProtocolError, match=f"^{re.escape(text)}$"):
        command(solo.connection)


def test_writing_to_a_closed_connection_raises() -> None:
    solo = Solo().opened()
    solo.connection.abort(solo.now)
    with pytest.raises(PeerClosedError, match=r"^the connection is closed: the peer will not read further data$"):
        solo.connection.write(b"x", solo.now)


def test_a_used_up_peer_window_is_zero_in_the_statistics() -> None:
    solo = Solo().connect()
    solo.answer(window=100)
    solo.connection.write(bytes(200), solo.now)
    solo.out()
    assert solo.connection.snapshot().window_bytes == 0


def test_an_abort_without_a_text_reports_an_empty_one() -> None:  # 5.8
    solo = Solo().opened()
    solo.connection.abort(solo.now)
    assert solo.event(Lost) == Lost(solo.connection.id, LostReason.ABORTED, "")


def test_the_answer_of_a_second_acceptor_is_named_as_the_cause_of_the_end() -> None:  # 6.8
    solo = Solo().opened()
    payload = encode_accepted(Accepted(solo.route_key, False, 1000, Options()))
    solo.receive(Packet(PacketType.ACCEPTED, solo.connection.id, PEER + 1, 7, payload))
    assert solo.event(Lost) == Lost(
        solo.connection.id, LostReason.GONE, "another endpoint answered in place of the peer"
    )
    solo.connection.fail(LostReason.GONE, None, solo.now)
    assert solo.events() == []
