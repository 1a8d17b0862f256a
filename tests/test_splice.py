"""Two connections that become one: who is told what, in every order. tests/servlet/exit has real sockets."""

import asyncio
import errno
import socket
import struct
from typing import Any

import pytest

from tunnel.splice import Side, SocketSide, TunnelSide, splice


class Wire(asyncio.Transport):
    """A transport that remembers what it was asked for, and tells its protocol what a test wants."""

    def __init__(self, side: Side) -> None:
        self.ends = socket.socketpair()
        super().__init__({"socket": self.ends[0]})
        self.asked: list[str] = []
        self.written = b""
        self.closing = False
        self.write_error: Exception | None = None
        self.side = side
        side.connection_made(self)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.asked.append("eof")

    def close(self) -> None:
        self.asked.append("close")
        self.closing = True

    def abort(self) -> None:
        self.asked.append("abort")
        self.closing = True

    def pause_reading(self) -> None:
        self.asked.append("pause")

    def resume_reading(self) -> None:
        self.asked.append("resume")

    def lost(self, error: Exception | None = None) -> None:
        """The connection is no more."""
        self.closing = True
        for end in self.ends:
            end.close()
        self.side.connection_lost(error)


class TcpSide(SocketSide):
    """A pair of Unix sockets stands for the TCP connection: it has no options of TCP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Side.connection_made(self, transport)


class Pair:
    """Both sides with their transports; forgets what was asked before they were spliced."""

    def __init__(self) -> None:
        self.ended: list[tuple[Side, Exception | None]] = []
        self.near = Wire(TcpSide(ended=self._ended))
        self.far = Wire(TunnelSide(ended=self._ended))

    def _ended(self, side: Side, error: Exception | None) -> None:
        self.ended.append((side, error))

    def splice(self) -> "Pair":
        splice(self.near.side, self.far.side)
        for wire in (self.near, self.far):
            wire.asked.clear()
        return self

    def lose(self) -> None:
        """At the end of a test."""
        for wire in (self.near, self.far):
            if wire.ends[0].fileno() >= 0:
                wire.lost()


@pytest.fixture
def pair() -> Any:
    made = Pair()
    yield made
    made.lose()


def test_nothing_is_read_before_there_are_two(pair: Pair) -> None:
    assert pair.near.asked == pair.far.asked == ["pause"]
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == pair.far.asked == ["pause", "resume"]


def test_bytes_go_both_ways_and_full_buffers_stop_the_other_side(pair: Pair) -> None:
    pair.splice()
    pair.near.side.data_received(b"up")
    pair.far.side.data_received(b"down")
    assert (pair.far.written, pair.near.written) == (b"up", b"down")
    pair.far.side.pause_writing()
    assert (pair.near.asked, pair.far.asked) == (["pause"], [])
    pair.far.side.resume_writing()
    assert pair.near.asked == ["pause", "resume"]


def test_an_end_for_a_socket_that_was_just_reset_is_no_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_connected(wire: Wire) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    pair.splice()
    monkeypatch.setattr(Wire, "write_eof", not_connected)
    assert pair.far.side.eof_received()
    pair.near.lost(ConnectionResetError())
    assert pair.far.asked == ["abort"]


def test_an_end_of_file_is_passed_on_alone(pair: Pair) -> None:
    pair.splice()
    assert pair.near.side.eof_received()
    assert (pair.near.asked, pair.far.asked) == ([], ["eof"])
    assert pair.far.side.eof_received()
    assert (pair.near.asked, pair.far.asked) == (["close"], ["eof", "close"])
    pair.near.lost()
    pair.far.lost()
    assert pair.near.asked == ["close"]
    assert pair.ended == [(pair.near.side, None), (pair.far.side, None)]


@pytest.mark.parametrize("order", [("near", "far"), ("far", "near")])
def test_an_error_on_one_side_is_a_reset_on_the_other(pair: Pair, order: tuple[str, str]) -> None:
    pair.splice()
    first, second = (getattr(pair, name) for name in order)
    error = ConnectionResetError()
    first.lost(error)
    assert second.asked == ["abort"]
    assert pair.ended == [(first.side, error)]


def test_a_reset_of_a_socket_does_not_linger(pair: Pair) -> None:
    pair.splice()
    pair.far.lost(ConnectionError())
    linger = pair.near.ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    assert struct.unpack("ii", linger) == (1, 0)
    pair.near.side.abort()
    assert pair.near.asked == ["abort"]  # once: the descriptor may be somebody else's by then


def test_a_cut_after_an_end_of_file_is_a_cut(pair: Pair) -> None:
    pair.splice()
    pair.far.side.eof_received()
    pair.far.side.abort()
    pair.far.lost()
    assert pair.near.asked == ["eof", "abort"]


def test_a_connection_that_ends_without_its_end_is_a_cut(pair: Pair) -> None:
    pair.splice()
    pair.far.lost()
    assert pair.near.asked == ["abort"]


def test_a_peer_that_has_closed_ends_the_pair(pair: Pair) -> None:
    pair.splice()
    pair.far.side.eof_received()
    pair.far.lost()
    assert pair.near.asked == ["eof", "close"]


def test_what_nobody_will_read_resets_its_writer(pair: Pair) -> None:
    pair.splice()
    pair.far.write_error = ConnectionResetError()
    pair.near.side.data_received(b"too late")
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_an_end_of_file_after_bytes_were_thrown_away_is_no_end(pair: Pair) -> None:
    pair.splice()
    pair.far.write_error = ConnectionResetError()
    assert pair.far.side.eof_received()
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_what_happens_before_they_meet_is_passed_on(pair: Pair) -> None:
    pair.far.side.data_received(b"220 ")
    pair.far.side.data_received(b"hello")
    pair.far.side.eof_received()
    assert pair.far.asked == ["pause"] * 3
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == ["pause", "eof", "resume"]
    assert pair.near.written == b"220 hello"


def test_two_ends_before_they_meet_close_both(pair: Pair) -> None:
    pair.far.side.eof_received()
    pair.near.side.eof_received()
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked[1:] == pair.far.asked[1:] == ["close"]


def test_a_side_that_has_gone_takes_the_other_with_it(pair: Pair) -> None:
    pair.near.lost(ConnectionResetError())
    splice(pair.near.side, pair.far.side)
    assert pair.far.asked == ["pause", "abort"]
    assert pair.near.asked == ["pause"]


def test_a_side_that_closes_takes_the_other_with_it(pair: Pair) -> None:
    pair.far.side.abort()
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == ["pause", "abort"]


def test_what_comes_for_a_closed_side_is_dropped(pair: Pair) -> None:
    pair.splice()
    pair.far.closing = True
    pair.near.side.data_received(b"gone")
    pair.near.side.eof_received()
    pair.far.side.pause_writing()
    assert (pair.far.written, pair.far.asked) == (b"", [])


def test_both_can_be_cut(pair: Pair) -> None:
    pair.splice()
    pair.near.side.abort_both()
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_who_waits_for_a_connection_is_told() -> None:
    made: list[Side] = []
    side = TcpSide(made.append)
    wire = Wire(side)
    assert made == [side]
    side.abort_both()
    side.pause_writing()
    side.resume_writing()
    assert wire.asked == ["pause", "abort"]
    wire.lost()
