"""How connections end: before the answer, by refusal, by silence, with a slow reader, by an early SHUTDOWN."""

import pytest

from tests.core.solo import MS, NO_ROUTE, Solo, payload
from tunnel.core import Closed, Connected, Flushed, LocalProtocolError, Lost, LostReason, Refused, State
from tunnel.core.constants import SECOND_US
from tunnel.wire import Packet, PacketType, Rejected, RejectReason, decode_end, encode_rejected

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
OPTION, CONNECT, ABORT, SHUTDOWN = PacketType.OPTION, PacketType.CONNECT, PacketType.ABORT, PacketType.SHUTDOWN


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


@pytest.mark.parametrize("rejected", [False, True])
def test_close_before_the_answer_still_delivers_written_data(rejected: bool) -> None:  # CLOSED_EARLY
    solo = Solo().connect()
    connection = solo.connection
    connection.write(b"abc", solo.now)
    connection.close(solo.now)
    connection.close(solo.now)
    assert solo.in_state(State.CLOSED_EARLY)
    with pytest.raises(LocalProtocolError):
        connection.write(b"x", solo.now)
    assert solo.types() == [DATA]
    if rejected:
        answer = encode_rejected(Rejected(solo.route_key, RejectReason.BUSY, "text"))
        solo.receive(Packet(PacketType.REJECTED, connection.id, 0, 0, answer))
        assert solo.event(Refused) == Refused(connection.id, RejectReason.BUSY, "text")
        return
    solo.answer()
    assert solo.in_state(State.CLOSING)
    packets = solo.out()
    end = decode_end(payload(packets, CLOSE))
    assert end is not None
    assert (end.length, end.received) == (3, 2**32 - 2)  # only ACCEPTED had been received
    solo.data(0, b"ignored")
    solo.ack()
    assert solo.events() == [Connected(connection.id), Flushed(connection.id), Closed(connection.id)]


def test_abort_before_the_answer_sends_nothing_until_the_answer_comes() -> None:
    solo = Solo().connect()
    solo.connection.abort(solo.now)
    assert solo.event(Lost).reason is LostReason.ABORTED
    assert solo.out() == []
    solo.answer()
    assert solo.types() == [ABORT]  # 3.9: the acceptor learns that the initiator has gone


# the end of an open connection


def test_abort_ends_a_connection_that_the_peer_has_closed() -> None:
    solo = Solo().opened()
    solo.data(0, b"abc")
    solo.end(1)
    solo.connection.abort(solo.now)
    assert solo.in_state(State.CLOSED)
    assert LostReason.ABORTED in [event.reason for event in solo.events() if isinstance(event, Lost)]


def test_losing_the_route_again_keeps_the_time_of_the_first_loss() -> None:
    solo = Solo().opened()
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    solo.wait(5 * SECOND_US)
    solo.relay(PacketType.DROPPED, NO_ROUTE)
    assert solo.connection.handshake.suspended_since_us == solo.now - 5 * SECOND_US


def test_abort_after_the_end_sends_and_reports_nothing() -> None:
    solo = Solo().opened()
    solo.end(0)
    assert solo.in_state(State.DRAIN)
    solo.out()
    solo.events()
    solo.connection.abort(solo.now)
    assert solo.in_state(State.DRAIN)
    assert (solo.out(), solo.events()) == ([], [])


def test_no_numbered_packet_follows_close() -> None:
    """A discarding receiver acknowledges the newest packet, even beyond a CLOSE that it has not seen (5.6)."""
    solo = Solo().opened()
    solo.connection.close(solo.now)
    solo.out()
    solo.endpoint.carrier_changed(1, 250 * MS, solo.now)
    assert solo.out() == []
    assert solo.connection.sender.rtt.pull_interval_us == 250 * MS
