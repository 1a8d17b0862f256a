"""The behaviour of connected stream sockets: the same tests for the kernel's sockets and for both ends of a tunnel."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import select
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from tests.client.sockets_rig import DEADLINE_S, KINDS, beside, fill, pair, receive
from tests.support.certificates import TLS
from tunnel_client import Runtime

Pair: TypeAlias = tuple[socket.socket, socket.socket]
RESET = struct.pack("ii", 1, 0)
BIG = random.Random(7).randbytes(3 << 20)


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Pair]:
    with pair(request.param, runtime) as both:
        yield both


# bytes


def test_bytes_go_both_ways(ends: Pair) -> None:
    a, b = ends
    assert a.send(b"ping") == 4
    assert receive(b, 4) == b"ping"
    b.sendall(b"pong")
    assert receive(a, 4) == b"pong"
    assert a.send(b"") == 0


def test_bulk_data_goes_both_ways_at_once(ends: Pair) -> None:
    a, b = ends
    got: dict[str, bytes] = {}
    with (
        beside(lambda: a.sendall(BIG)),
        beside(lambda: b.sendall(BIG[::-1])),
        beside(lambda: got.update(b=receive(b, len(BIG)))),
    ):
        got["a"] = receive(a, len(BIG))
    assert hashlib.sha256(got["b"]).digest() == hashlib.sha256(BIG).digest()
    assert got["a"] == BIG[::-1]


def test_data_is_received_into_buffers(ends: Pair) -> None:
    a, b = ends
    b.sendall(b"0123456789")
    buffer = bytearray(16)
    assert a.recv_into(buffer, 4) == 4
    assert a.recvfrom_into(memoryview(buffer)[4:], 2)[0] == 2
    assert a.recvfrom(2)[0] == b"67"
    assert bytes(buffer[:6]) == b"012345"
    first, second = bytearray(1), bytearray(9)
    assert a.recvmsg_into([first, second])[0] == 2
    assert bytes(first + second[:1]) == b"89"


def test_sendmsg_gathers_buffers_and_recvmsg_returns_data(ends: Pair) -> None:
    a, b = ends
    assert a.sendmsg([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
    assert receive(b, 11) == b"onetwothree"
    b.sendall(b"back")
    data, ancillary, flags, _ = a.recvmsg(4)
    assert (data, ancillary, flags & socket.MSG_TRUNC) == (b"back", [], 0)


def test_recv_can_peek_and_wait_for_all(ends: Pair) -> None:
    a, b = ends
    a.settimeout(None)  # MSG_WAITALL works only if Python itself does not wait (no timeout)
    b.sendall(b"abc")
    assert a.recv(2, socket.MSG_PEEK) == b"ab"
    with beside(lambda: b.sendall(b"def")):
        assert a.recv(6, socket.MSG_WAITALL) == b"abcdef"


def test_sockets_can_be_used_as_files(ends: Pair) -> None:
    a, b = ends
    with a.makefile("rw", encoding="utf-8", newline="\n") as text, b.makefile("rwb", buffering=0) as raw:
        text.write("grüße\n")
        text.flush()
        assert raw.read(8) == "grüße\n".encode()
        raw.write(b"line 1\nline 2\n")
        b.shutdown(socket.SHUT_WR)
        assert list(text) == ["line 1\n", "line 2\n"]


def test_the_connection_lives_as_long_as_its_files(ends: Pair) -> None:
    a, b = ends
    with a.makefile("rb") as file:
        a.close()
        b.sendall(b"still here")
        b.shutdown(socket.SHUT_WR)
        assert file.read() == b"still here"


def test_a_part_of_a_file_can_be_sent(ends: Pair) -> None:
    a, b = ends
    with tempfile.TemporaryFile() as file:
        file.write(BIG)
        file.seek(10)
        with beside(lambda: a.sendfile(file, 10, len(BIG) - 20)):
            assert receive(b, len(BIG) - 20) == BIG[10:-10]
        assert file.tell() == len(BIG) - 10


def test_the_descriptor_is_a_real_one(ends: Pair) -> None:
    a, b = ends
    assert os.write(a.fileno(), b"by number") == 9
    assert receive(b, 9) == b"by number"
    b.sendall(b"back")
    assert select.select([a], [], [], DEADLINE_S)[0] == [a]
    assert os.read(a.fileno(), 10) == b"back"
    assert not os.get_inheritable(a.fileno())


# waiting


def test_select_and_poll_say_when_a_socket_is_readable_and_writable(ends: Pair) -> None:
    a, b = ends
    assert select.select([a], [a], [], 0) == ([], [a], [])
    b.sendall(b"x")
    poll = select.poll()
    poll.register(a, select.POLLIN | select.POLLOUT)
    assert select.select([a], [], [], DEADLINE_S)[0] == [a]
    assert poll.poll(0) == [(a.fileno(), select.POLLIN | select.POLLOUT)]
    receive(a, 1)
    assert poll.poll(0) == [(a.fileno(), select.POLLOUT)]


def test_reading_without_data_does_not_block_beyond_the_timeout(ends: Pair) -> None:
    a, _ = ends
    a.setblocking(False)
    with pytest.raises(BlockingIOError):
        a.recv(1)
    a.settimeout(0.01)
    with pytest.raises(TimeoutError, match="timed out"):
        a.recv(1)


def test_a_writer_waits_for_a_reader_that_does_not_read(ends: Pair) -> None:
    a, b = ends
    written = fill(a)
    assert 0 < written < 64 << 20  # the writer does not fill all memory
    a.settimeout(0.3)

    def write_on() -> None:
        for _ in range(64):
            a.sendall(bytes(1 << 20))

    with pytest.raises(TimeoutError):
        write_on()
    a.settimeout(DEADLINE_S)

    def end() -> None:
        a.sendall(b"end")
        a.shutdown(socket.SHUT_WR)

    with beside(end):
        rest = receive(b, 1 << 30)
    assert len(rest) >= written + 3
    assert rest.endswith(b"end")


def test_a_slow_reader_does_not_stop_the_other_direction(ends: Pair) -> None:
    a, b = ends
    fill(a)
    b.sendall(b"pong")
    assert receive(a, 4) == b"pong"


# ends


def test_each_direction_ends_on_its_own(ends: Pair) -> None:
    a, b = ends
    a.sendall(b"last")
    a.shutdown(socket.SHUT_WR)
    assert receive(b, 100) == b"last"
    with pytest.raises(BrokenPipeError):
        a.send(b"more")
    b.sendall(b"and after that")
    b.shutdown(socket.SHUT_WR)
    assert receive(a, 100) == b"and after that"
    assert a.recv(1) == b""
    assert a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_shutting_down_reading_leaves_writing_open(ends: Pair) -> None:
    a, b = ends
    a.shutdown(socket.SHUT_RD)
    assert a.recv(1) == b""
    a.sendall(b"still writing")
    assert receive(b, 13) == b"still writing"


def test_a_close_after_all_data_is_a_clean_end(ends: Pair) -> None:
    a, b = ends
    a.sendall(BIG[:100_000])
    a.close()
    assert receive(b, 1 << 20) == BIG[:100_000]
    assert b.recv(1) == b""


def test_pending_data_can_be_read_before_a_reset(ends: Pair) -> None:
    a, b = ends
    b.sendall(b"pending")
    assert a.recv(7, socket.MSG_PEEK) == b"pending"
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    b.close()
    poll = select.poll()
    poll.register(a, 0)
    ((number, events),) = poll.poll(DEADLINE_S * 1000)
    assert number == a.fileno()
    assert events & select.POLLERR
    assert receive(a, 7) == b"pending"
    with pytest.raises(ConnectionResetError):
        a.recv(1)
    with pytest.raises(BrokenPipeError):
        a.send(b"x")


def test_so_error_reports_a_reset_once(ends: Pair) -> None:
    a, b = ends
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    b.close()
    assert select.select([a], [], [], DEADLINE_S)[0] == [a]
    assert a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
    assert a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


def test_closing_with_unread_data_is_a_reset(ends: Pair) -> None:
    a, b = ends
    a.sendall(b"unread")
    assert b.recv(1, socket.MSG_PEEK) == b"u"
    b.close()
    with pytest.raises(ConnectionResetError):
        a.recv(1)


def test_writing_to_a_closed_peer_eventually_fails(ends: Pair) -> None:
    a, b = ends
    b.close()
    assert a.recv(1) == b""

    def write_on() -> None:
        while True:
            a.send(b"x")
            select.select([], [], [a], 0.01)

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        write_on()


CALLS: list[Callable[[socket.socket], Any]] = [
    lambda sock: sock.recv(1),
    lambda sock: sock.recv_into(bytearray(1)),
    lambda sock: sock.send(b"x"),
    lambda sock: sock.sendall(b"x"),
    lambda sock: sock.sendmsg([b"x"]),
    lambda sock: sock.getpeername(),
    lambda sock: sock.getsockname(),
    lambda sock: sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
    lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    lambda sock: sock.shutdown(socket.SHUT_RDWR),
    lambda sock: sock.connect(("127.0.0.1", 9)),
    lambda sock: sock.dup(),
]


def test_after_close_calls_raise_ebadf(ends: Pair) -> None:
    a, _ = ends
    a.close()
    a.close()
    assert a.fileno() == -1
    for call in CALLS:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            call(a)
        assert caught.value.errno == errno.EBADF


def test_a_context_manager_closes(ends: Pair) -> None:
    a, b = ends
    with a as same:
        assert same is a
        a.sendall(b"x")
    assert a.fileno() == -1
    assert receive(b, 5) == b"x"


# copies


def test_a_copy_keeps_the_connection(ends: Pair) -> None:
    a, b = ends
    with a.dup() as copy:
        assert type(copy) is type(a)
        assert copy.getpeername() == a.getpeername()
        a.close()
        copy.sendall(b"by the copy")
        assert receive(b, 11) == b"by the copy"
    assert b.recv(1) == b""


def test_detached_descriptors_live_on(ends: Pair) -> None:
    a, b = ends
    number = a.detach()
    assert a.fileno() == -1
    with socket.socket(fileno=number) as again:
        again.sendall(b"again")
        assert receive(b, 5) == b"again"


def test_both_addresses_are_loopback_and_the_kind_is_that_of_tcp(ends: Pair) -> None:
    a, _ = ends
    assert a.getsockname()[0] == "127.0.0.1"
    assert a.getpeername()[0] == "127.0.0.1"
    assert a.family == socket.AF_INET
    assert a.type == socket.SOCK_STREAM
    a.connect_ex(a.getpeername())  # after a connect with a timeout, the kernel lets one more call succeed
    assert a.connect_ex(a.getpeername()) == errno.EISCONN


def test_many_threads_use_one_socket(ends: Pair) -> None:
    a, b = ends
    with contextlib.ExitStack() as stack:
        for number in range(8):
            stack.enter_context(beside(lambda number=number: a.sendall(bytes([number]) * 50_000)))  # type: ignore[misc]
        got = receive(b, 8 * 50_000)
    assert [got.count(number) for number in range(8)] == [50_000] * 8


def test_tls_runs_over_the_connection(ends: Pair) -> None:
    a, b = ends
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "server.pem")
    client = ssl.create_default_context(cafile=str(TLS / "ca.pem"))

    def serve() -> None:
        with server.wrap_socket(b, server_side=True) as secure:
            secure.sendall(receive(secure, 1 << 20)[::-1])
            secure.unwrap()

    with beside(serve), client.wrap_socket(a, server_hostname="localhost") as secure:
        secure.sendall(BIG[: 1 << 20])
        assert receive(secure, 1 << 20) == BIG[: 1 << 20][::-1]
        assert secure.recv(1) == b""
        secure.unwrap()
