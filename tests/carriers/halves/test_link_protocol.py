"""One half of a link: its first message in any pieces, its output, and the options of its connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.loops import in_loop
from tunnel.carriers.halves.link_protocol import LINK_LANE, LinkProtocol
from tunnel.exchange import LinkInput, LinkState
from tunnel.wire import ENVELOPE_BYTES, Answer, Exchange, encode_envelope

pytestmark = pytest.mark.interpreted  # Half inherits from LinkProtocol

FIRST = b"".join(encode_envelope(Exchange(b"i" * 16, 5, 7, LINK_LANE, 0, 0, 0, 0)))
NOTSENT_LOWAT = 25  # the value of TCP_NOTSENT_LOWAT on Linux


class Half(LinkProtocol):
    """Records the calls. A first message other than an EXCHANGE is invalid."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000_000, 1 << 20, ENVELOPE_BYTES + 1000)
        self.log: list[str] = []
        self.messages: list[object] = []
        self.batches: list[bytes] = []

    def opened_by(self, message: object) -> bool:
        self.log.append("opened")
        self.messages.append(message)
        self.is_open = isinstance(message, Exchange)
        return self.is_open

    def on_input(self, found: LinkInput) -> None:
        self.batches += map(bytes, found.batches)

    def writable(self) -> None:
        self.log.append("writable")

    def on_refused(self) -> None:
        self.log.append("refused")
        self.is_over = True


class Wire(asyncio.Transport):
    """A transport that records what it is asked to do. `sock`: the socket whose options the protocol sets."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        super().__init__({"socket": sock})
        self.log: list[Any] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.log.append(("limits", high, low))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.log.append(protocol)

    def write(self, data: Any) -> None:
        self.log.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.log.append([len(data) for data in list_of_data])


def read_into(half: Half, data: bytes) -> None:
    """Deliver bytes as an event loop does: as many at once as the protocol has room for."""
    while data:
        space = half.get_buffer(-1)
        size = min(len(space), len(data))
        space[:size] = data[:size]
        half.buffer_updated(size)
        data = data[size:]


def batch(payload: bytes) -> bytes:
    return b"".join(LinkState().send([payload], 1))


@pytest.mark.parametrize("size", [1, 7, 12, len(FIRST) - 1, len(FIRST), len(FIRST) + 1, 10_000])
def test_the_first_message_and_the_batches_after_it_may_come_in_any_pieces(size: int) -> None:
    half = Half()
    stream = FIRST + batch(b"x" * 3000)
    for start in range(0, len(stream), size):
        read_into(half, stream[start : start + size])
    assert half.log == ["opened"]
    (message,) = half.messages
    assert isinstance(message, Exchange)
    assert (message.attachment_id, message.lane) == (b"i" * 16, LINK_LANE)
    assert half.batches == [b"x" * 3000]


def test_nothing_is_decided_before_the_whole_first_message_is_there() -> None:
    half = Half()
    half.take(FIRST[:-1])
    assert (half.log, half.is_open) == ([], False)
    half.take(FIRST[-1:])
    assert (half.log, half.is_open) == (["opened"], True)


def test_what_follows_an_invalid_first_message_is_not_read() -> None:
    half = Half()
    answer = b"".join(encode_envelope(Answer(LINK_LANE, 0, 0)))
    read_into(half, answer + batch(b"never"))
    assert (half.log, half.is_open, half.batches) == (["opened"], False, [])


@pytest.mark.parametrize(("size", "log"), [(1000, []), (1001, ["refused"]), (0x7F000000, ["refused"])])
def test_a_first_message_beyond_the_limit_is_refused_before_it_is_read(size: int, log: list[str]) -> None:
    half = Half()
    read_into(half, b"TUNL\x01\x04\x00\x00" + size.to_bytes(4, "big") + bytes(ENVELOPE_BYTES - 12))
    assert half.log == log


def test_what_comes_after_a_refusal_is_ignored() -> None:
    half = Half()
    read_into(half, b"TUNL\x01\x04\x00\x00\x7f\xff\xff\xff" + bytes(100))
    read_into(half, bytes(100))
    assert half.log == ["refused"]


def test_an_end_of_file_closes_the_connection() -> None:
    half: asyncio.BufferedProtocol = Half()
    assert not half.eof_received()


# output


def test_small_buffers_are_joined_and_large_ones_are_not_copied() -> None:
    half, wire = Half(), Wire()
    half.take_over(wire, {})
    wire.log.clear()
    half.write([])
    half.write([b"a", bytearray(b"b"), memoryview(b"c")])
    half.write([b"x" * 8192, b"y" * 8192])
    half.write([b"x" * 8192, b"y" * 8193])
    half.write([b"z" * 20_000])
    half.is_over = True
    half.write([b"too late"])
    assert wire.log == [b"abc", b"x" * 8192 + b"y" * 8192, [8192, 8193], b"z" * 20_000]


@in_loop
async def test_output_continues_when_the_connection_takes_bytes_again_but_not_before_the_link_is_open() -> None:
    half = Half()
    half.pause_writing()
    assert half.is_paused
    half.resume_writing()
    await asyncio.sleep(0)
    assert (half.is_paused, half.log) == (False, [])
    half.is_open = True
    half.pause_writing()
    half.resume_writing()
    assert (half.is_paused, half.log) == (False, [])
    await asyncio.sleep(0)
    assert half.log == ["writable"]


@in_loop
async def test_output_does_not_continue_if_the_connection_has_filled_or_ended_meanwhile() -> None:
    paused, over = Half(), Half()
    for half in (paused, over):
        half.is_open = True
        half.resume_writing()
    paused.pause_writing()
    over.is_over = True
    await asyncio.sleep(0)
    assert paused.log == over.log == []


class Eager(Half):
    """Ends its own connection and writes as soon as it may. `lost` is the error with which the connection was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def writable(self) -> None:
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.shutdown(socket.SHUT_WR)
        self.write([b"fails"])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


@in_loop
async def test_a_connection_that_fails_when_output_continues_is_lost_once() -> None:
    """asyncio's transports end twice, with an error, if a write inside `resume_writing` fails."""

    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            pass
        writer.close()
        served.set()

    served = asyncio.Event()
    half = Eager()
    half.is_open = True
    async with await asyncio.start_server(read_all, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: half, *address)
        half.take_over(transport, {})
        while not half.is_paused:
            half.write([bytes(1 << 20)])
        assert isinstance(await half.lost, BrokenPipeError)
        await served.wait()


# the connection


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        yield sock


def test_a_link_keeps_kernel_buffers_small_and_detects_a_dead_path(sock: socket.socket) -> None:
    half, wire = Half(), Wire(sock)
    half.take_over(wire, {"TCP_USER_TIMEOUT": 15_000, "TCP_KEEPIDLE": 20, "TCP_UNKNOWN_HERE": 1})
    assert wire.log == [("limits", 64 * 1024, None), half]
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT) == 128 * 1024
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20


def test_options_without_a_name_in_this_python_are_set_by_number(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")
    monkeypatch.delattr(socket, "TCP_NOTSENT_LOWAT", raising=False)
    Half().take_over(Wire(sock), {"TCP_USER_TIMEOUT": 7_000})
    assert sock.getsockopt(socket.IPPROTO_TCP, 18) == 7_000
    assert sock.getsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT) == 128 * 1024


def test_a_connection_that_has_no_tcp_socket_is_used_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (None, ours):
            half, wire = Half(), Wire(sock)
            half.take_over(wire, {"TCP_USER_TIMEOUT": 15_000})
            assert wire.log[-1] is half
    half, wire = Half(), Wire(ours)  # `ours` is closed now
    half.take_over(wire, {})
    assert wire.log[-1] is half
