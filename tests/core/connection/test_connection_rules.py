"""Further rules of a connection: its numbers, its errors for misuse, and what it learns from the peer."""

import re
from collections.abc import Callable

import pytest

from tests.core.solo import PEER, TARGET, Solo
from tunnel.core import Connection, LocalProtocolError, Lost, LostReason, PeerClosedError, State
from tunnel.wire import Accepted, Options, Packet, PacketType, RejectReason, encode_accepted


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


def test_the_peers_user_timeout_is_in_milliseconds() -> None:  # 2.0, 4.15
    solo = Solo().connect()
    solo.answer(Options(user_timeout_ms=10_000))
    solo.connection.write(b"x", solo.now)
    solo.wait(9_900_000)
    assert not [event for event in solo.events() if isinstance(event, Lost)]
    solo.wait(100_000)
    assert [event.reason for event in solo.events() if isinstance(event, Lost)] == [LostReason.TIMEOUT]


def test_an_abort_has_no_number() -> None:  # 1.5
    solo = Solo().opened()
    solo.connection.abort(solo.now)
    assert [(packet.type, packet.sequence) for packet in solo.out()] == [(PacketType.ABORT, 0)]


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
