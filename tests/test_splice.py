"""Two connections spliced into one: an end on one side reaches the other. tests/servlet/exit has real sockets."""

import asyncio
import errno
import socket
import struct
from typing import Any

import pytest

from tests.support.loops import in_loop
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice


class Wire(asyncio.Transport):
    """A transport that records calls, and makes the calls to its protocol that a test wants."""

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
        """Report the connection as lost to the protocol."""
        self.closing = True
        for end in self.ends:
            end.close()
        self.side.connection_lost(error)


class TcpSide(SocketSide):
    """A pair of Unix sockets stands for the TCP connection: it has no options of TCP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Side.connection_made(self, transport)


class Pair:
    """Both sides with their transports; `splice` forgets the calls that were recorded before it."""

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
        """Lose both connections at the end of a test."""
        for wire in (self.near, self.far):
            if wire.ends[0].fileno() >= 0:
                wire.lost()


@pytest.fixture
def pair() -> Any:
    made = Pair()
    yield made
    made.lose()


def test_reading_starts_only_after_splicing(pair: Pair) -> None:
    assert pair.near.asked == pair.far.asked == ["pause"]
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == pair.far.asked == ["pause", "resume"]


def test_bytes_go_both_ways_and_full_buffers_pause_the_other_side(pair: Pair) -> None:
    pair.splice()
    pair.near.side.data_received(b"up")
    pair.far.side.data_received(b"down")
    assert (pair.far.written, pair.near.written) == (b"up", b"down")
    pair.far.side.pause_writing()
    assert (pair.near.asked, pair.far.asked) == (["pause"], [])
    pair.far.side.resume_writing()
    assert pair.near.asked == ["pause", "resume"]


def test_half_closing_a_socket_that_was_just_reset_is_no_error(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_connected(wire: Wire) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    pair.splice()
    monkeypatch.setattr(Wire, "write_eof", not_connected)
    assert pair.far.side.eof_received()
    pair.near.lost(ConnectionResetError())
    assert pair.far.asked == ["abort"]


def test_an_end_of_file_ends_one_direction_only(pair: Pair) -> None:
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
def test_an_error_on_one_side_resets_the_other(pair: Pair, order: tuple[str, str]) -> None:
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
    assert pair.near.asked == ["abort"]  # once: the descriptor may belong to another connection by then


def test_a_reset_after_an_end_of_file_resets_the_other_side(pair: Pair) -> None:
    pair.splice()
    pair.far.side.eof_received()
    pair.far.side.abort()
    pair.far.lost()
    assert pair.near.asked == ["eof", "abort"]


def test_a_connection_lost_without_an_end_of_file_resets_the_other_side(pair: Pair) -> None:
    pair.splice()
    pair.far.lost()
    assert pair.near.asked == ["abort"]


def test_a_connection_lost_after_an_end_of_file_closes_the_other_side(pair: Pair) -> None:
    pair.splice()
    pair.far.side.eof_received()
    pair.far.lost()
    assert pair.near.asked == ["eof", "close"]


def test_data_that_cannot_be_delivered_resets_its_writer(pair: Pair) -> None:
    pair.splice()
    pair.far.write_error = ConnectionResetError()
    pair.near.side.data_received(b"too late")
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_an_end_of_file_after_lost_bytes_resets_both_sides(pair: Pair) -> None:
    pair.splice()
    pair.far.write_error = ConnectionResetError()
    assert pair.far.side.eof_received()
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_data_and_end_before_splicing_are_passed_on(pair: Pair) -> None:
    pair.far.side.data_received(b"220 ")
    pair.far.side.data_received(b"hello")
    pair.far.side.eof_received()
    assert pair.far.asked == ["pause"] * 3
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == ["pause", "eof", "resume"]
    assert pair.near.written == b"220 hello"


@pytest.mark.parametrize("target_is_first", [True, False])
def test_two_users_a_side_that_early_data_of_the_other_has_filled_is_read_no_further(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, *, target_is_first: bool
) -> None:
    """Without it, an exit reads all that a target sends although the stream cannot take it yet, and keeps it all."""
    monkeypatch.setattr(pair.far, "write", lambda data: pair.far.side.pause_writing())
    pair.near.side.data_received(b"more than the buffer takes")
    pair.near.asked.clear()
    sides = (pair.near.side, pair.far.side)
    splice(*(sides if target_is_first else reversed(sides)))
    assert pair.near.asked == ["pause"]
    assert pair.far.asked == ["pause", "resume"]
    pair.far.side.resume_writing()
    assert pair.near.asked == ["pause", "resume"]


def test_two_ends_of_file_before_splicing_close_both_sides(pair: Pair) -> None:
    pair.far.side.eof_received()
    pair.near.side.eof_received()
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked[1:] == pair.far.asked[1:] == ["close"]


def test_splicing_to_a_lost_side_resets_the_other(pair: Pair) -> None:
    pair.near.lost(ConnectionResetError())
    splice(pair.near.side, pair.far.side)
    assert pair.far.asked == ["pause", "abort"]
    assert pair.near.asked == ["pause"]


def test_splicing_to_a_closing_side_resets_the_other(pair: Pair) -> None:
    pair.far.side.abort()
    splice(pair.near.side, pair.far.side)
    assert pair.near.asked == ["pause", "abort"]


def test_data_for_a_closed_side_is_dropped(pair: Pair) -> None:
    pair.splice()
    pair.far.closing = True
    pair.near.side.data_received(b"gone")
    pair.near.side.eof_received()
    pair.far.side.pause_writing()
    assert (pair.far.written, pair.far.asked) == (b"", [])


def test_both_sides_can_be_reset(pair: Pair) -> None:
    pair.splice()
    pair.near.side.abort_both()
    assert pair.near.asked == pair.far.asked == ["abort"]


def test_the_caller_that_waits_for_a_connection_is_called() -> None:
    made: list[Side] = []
    side = TcpSide(made.append)
    wire = Wire(side)
    assert made == [side]
    side.abort_both()
    side.pause_writing()
    side.resume_writing()
    assert wire.asked == ["pause", "abort"]
    wire.lost()


@in_loop
async def test_a_tcp_side_sends_small_writes_at_once_and_notices_a_dead_peer() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        transport, side = await asyncio.get_running_loop().create_connection(SocketSide, *address)
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        side.abort()


@in_loop
async def test_a_tcp_side_resets_its_peer_unless_it_is_closed_cleanly() -> None:
    """SO_LINGER is set from the beginning, so that the kernel resets the connection of a process that is killed."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: accepted.put_nowait(streams), "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        _, side = await loop.create_connection(SocketSide, *address)
        reader, writer = await accepted.get()
        side.write(bytes(5_000_000))  # more than the buffers of the kernel hold
        side.close()
        assert len(await reader.read()) == 5_000_000
        writer.close()
        transport, side = await loop.create_connection(SocketSide, *address)
        reader, writer = await accepted.get()
        side.write(b"half")
        assert await reader.readexactly(4) == b"half"
        transport.close()  # without the side, as when the kernel closes it
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
