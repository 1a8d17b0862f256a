"""The writer of the log: callers never wait for it, losses are counted, users do not displace each other's lines."""

import fcntl
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from io import StringIO

import pytest

from tunnel.logs import writer as writer_module
from tunnel.logs.writer import LineWriter, write_to

WAIT_S = 30.0


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


class Reader:
    """The reader of a log. It takes nothing before `opens`, and fails while `error` is set."""

    def __init__(self) -> None:
        self.written = b""
        self.opens = threading.Event()
        self.waits = threading.Event()  # a write has begun
        self.error: OSError | None = None

    def write(self, data: bytes) -> None:
        self.waits.set()
        assert self.opens.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.written += data


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.opens.set()


def test_lines_are_written_in_order_also_after_closing_began(reader: Reader) -> None:
    writer = LineWriter(reader.write, lost)
    assert all(writer.put(b"%d\n" % number) for number in range(1000))
    reader.opens.set()
    assert writer.close(WAIT_S)
    assert reader.written == b"".join(b"%d\n" % number for number in range(1000))
    assert (writer.written, writer.dropped, writer.held_bytes) == (1000, 0, 0)


def test_lines_that_come_soon_after_another_are_written_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GATHER_S", WAIT_S)
    writes: list[bytes] = []
    writer = LineWriter(writes.append, lost)
    for number in range(100):
        assert writer.put(b"%d\n" % number)
    assert writer.close(WAIT_S)  # which does not wait for more lines
    assert writes == [b"".join(b"%d\n" % number for number in range(100))]


def test_a_whole_write_is_not_kept_waiting_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GATHER_S", WAIT_S)
    is_written = threading.Event()
    writer = LineWriter(lambda data: is_written.set(), lost)
    assert writer.put(b"first\n")
    assert writer.put(bytes(70_000))
    assert is_written.wait(WAIT_S / 2)
    assert writer.close(WAIT_S)


def test_a_reader_that_stands_still_costs_lines_and_no_time(reader: Reader) -> None:
    writer = LineWriter(reader.write, lost, bytes_max=100)
    took = [writer.put(b"123456789\n") for _ in range(15)]
    assert took == [True] * 10 + [False] * 5
    assert (writer.held_bytes, writer.dropped) == (100, 5)
    assert not writer.close(0.01)
    assert not writer.put(b"too late\n")
    reader.opens.set()
    assert writer.close(WAIT_S)
    assert reader.written == b"123456789\n" * 10 + b"lost 6\n"


def test_losses_are_reported_after_the_lines_that_waited_and_before_later_ones(reader: Reader) -> None:
    writer = LineWriter(reader.write, lost, bytes_max=10)
    assert writer.put(b"first....\n")
    assert not writer.put(b"second\n")
    reader.opens.set()
    while writer.held_bytes:
        pass
    assert writer.put(b"third\n")
    assert writer.close(WAIT_S)
    assert reader.written == b"first....\nlost 1\nthird\n"


def test_two_users_one_leaves_room_for_the_other_and_for_the_process(reader: Reader) -> None:
    writer = LineWriter(reader.write, lost, bytes_max=1000)
    line = b"123456789\n"
    assert sum(writer.put(line, "eve") for _ in range(200)) == 50
    assert sum(writer.put(line, "ann") for _ in range(200)) == 25
    assert sum(writer.put(line) for _ in range(200)) == 25
    reader.opens.set()
    assert writer.close(WAIT_S)
    assert writer._bytes_of == {}


def test_a_reader_that_has_gone_costs_lines_and_may_return(reader: Reader) -> None:
    reader.error = BrokenPipeError()
    reader.opens.set()
    writer = LineWriter(reader.write, lost)
    writer.put(b"first\n")
    while not writer.dropped:
        pass
    reader.error = None
    writer.put(b"second\n")
    assert writer.close(WAIT_S)
    assert reader.written == b"second\nlost 1\n"
    assert (writer.written, writer.dropped) == (1, 1)


def test_a_report_that_cannot_be_written_is_repeated(reader: Reader) -> None:
    failing = [OSError("no space")]

    def write(data: bytes) -> None:
        if data.startswith(b"lost") and failing:
            raise failing.pop()
        reader.write(data)

    writer = LineWriter(write, lost, bytes_max=10)
    writer.put(b"first....\n")
    writer.put(b"dropped\n")
    reader.opens.set()
    while failing or writer.held_bytes:
        pass
    writer.put(b"second\n")
    assert writer.close(WAIT_S)
    assert reader.written == b"first....\nsecond\nlost 1\n"


def test_due_is_called_when_its_time_has_come_and_after_look(reader: Reader) -> None:
    calls: list[int] = []
    third = threading.Event()
    due_s: list[float | None] = [0.0, None]  # `due` is called again at once, and then only after `look`

    def due() -> float | None:
        calls.append(1)
        if len(calls) >= 3:
            third.set()
        return due_s.pop(0) if due_s else None

    writer = LineWriter(reader.write, lost, due)
    while due_s:
        pass
    writer.look()
    assert third.wait(WAIT_S)
    assert writer.close(WAIT_S)


def test_a_line_of_a_finaliser_does_not_stop_its_thread(reader: Reader) -> None:
    """In a thread that is in `put`, the garbage collector can run a finaliser, and the finaliser can log."""
    reader.opens.set()
    writer = LineWriter(reader.write, lost)
    with writer._changed:
        assert writer.put(b"from a finaliser\n")
    assert writer.close(WAIT_S)
    assert reader.written == b"from a finaliser\n"


def test_everything_goes_through_a_descriptor_that_takes_little_at_a_time() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    data = bytes(range(256)) * 2048
    with theirs, ours, ours.makefile("w") as stream:
        thread = threading.Thread(target=write_to(stream), args=(data,))
        thread.start()
        found = b""
        while len(found) < len(data):
            found += theirs.recv(1 << 16)
        thread.join()
    assert found == data


def test_a_stream_without_a_descriptor_gets_text() -> None:
    stream = StringIO()
    write_to(stream)(b"a\xff\n")
    assert stream.getvalue() == "a\ufffd\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe can be set only on Linux")
def test_a_full_pipe_that_is_not_read_lets_callers_go_on() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with open(writing, "w") as stream:
        writer = LineWriter(write_to(stream), lost, bytes_max=8192)
        line = b"x" * 99 + b"\n"
        while writer.put(line):
            pass
        assert not writer.close(0.01)
        os.set_blocking(reading, True)
        found = b""
        while not writer.close(0):
            if select.select([reading], [], [], 0.01)[0]:  # the writer may have ended since, with nothing to read
                found += os.read(reading, 1 << 16)
    with open(reading, "rb") as rest:
        found += rest.read()
    assert found == line * (found.count(b"\n") - 1) + b"lost 1\n"
