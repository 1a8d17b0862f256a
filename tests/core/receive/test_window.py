"""The receiving half of a stream: order, window, ends, pinned memory and the announced edge."""

from collections.abc import Iterator

import pytest
from xxhash import xxh3_128

from tests.core.receive_bench import CLOSE, FINISH, FIRST, KIB, OPTION, data, end, end_of, make, read_all, small
from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.wire import End, PacketType

# order


def test_data_in_order_is_readable_at_once() -> None:
    window = make()
    assert window.read(10) == b""
    assert data(window, 0, b"one") is Arrival.IN_ORDER
    assert data(window, 1, b"two") is Arrival.IN_ORDER
    assert window.readable
    assert (window.received_offset, window.buffered_bytes) == (6, 6)
    assert window.read(0) == b""
    assert window.read(4) == b"onet"
    assert window.read(10) == b"wo"
    assert (window.delivered_offset, window.buffered_bytes) == (6, 0)
    assert not window.readable


# limits


def test_data_beyond_the_window_is_refused() -> None:  # 4.1
    window = small(100)
    assert data(window, 1, bytes(101)) is Arrival.REFUSED
    assert data(window, 1, bytes(60)) is Arrival.OUT_OF_ORDER
    assert data(window, 2, bytes(41)) is Arrival.REFUSED
    assert data(window, 2, bytes(10)) is Arrival.OUT_OF_ORDER
    assert data(window, 0, bytes(101)) is Arrival.REFUSED
    assert data(window, 0, bytes(30)) is Arrival.IN_ORDER
    assert window.window_bytes == 0
    assert data(window, 3, b"x") is Arrival.REFUSED
    assert end(window, 3, bytes(100)) is Arrival.IN_ORDER  # needs no window (5.1)


def test_packets_beyond_a_gap_are_bounded() -> None:
    window = small(2**20, out_of_order_packets_max=4)
    assert data(window, 17, b"x") is Arrival.REFUSED
    for number in (16, 2, 3, 4):
        assert data(window, number, b"x") is Arrival.OUT_OF_ORDER
    assert data(window, 5, b"x") is Arrival.REFUSED


def test_the_window_doubles_when_the_sender_fills_it_and_the_reader_keeps_up() -> None:
    config = EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=350)
    window = make(config)
    sizes = []
    for number in range(6):
        data(window, number, bytes(window.window_bytes))
        window.advance()
        read_all(window)
        window.advance()
        sizes.append(window.size_bytes)
    assert sizes == [200, 350, 350, 350, 350, 350]


def test_each_doubling_must_be_earned() -> None:
    window = make(EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=10_000))
    data(window, 0, bytes(100))
    for number in range(1, 10):
        read_all(window)
        window.advance()
        data(window, number, bytes(10))
    assert window.size_bytes == 200


def test_the_window_does_not_grow_for_a_slow_reader_or_a_slow_sender() -> None:
    config = EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=400)
    slow_reader, slow_sender = make(config), make(config)
    data(slow_reader, 0, bytes(100))
    slow_reader.read(70)
    slow_reader.advance()
    assert slow_reader.size_bytes == 100
    for number in range(20):
        data(slow_sender, number, bytes(30))
        read_all(slow_sender)
        slow_sender.advance()
        slow_sender.announce()
    assert slow_sender.size_bytes == 100


def test_the_window_grows_after_use_up_when_the_reader_keeps_up() -> None:
    window = make(EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=10_000))
    data(window, 0, bytes(30))
    window.use_up()
    window.advance()
    assert window.size_bytes == 100
    read_all(window)
    window.advance()
    window.advance()
    assert window.size_bytes == 200


def test_growth_is_granted_by_the_budget_and_given_back() -> None:
    budget = WindowBudget(150)
    config = EndpointConfig(window_bytes_min=10, window_bytes_start=100, window_bytes_max=1000)
    first, second = ReceiveWindow(config, budget, FIRST), ReceiveWindow(config, budget, FIRST)
    assert (first.size_bytes, second.size_bytes, budget.granted_bytes) == (100, 70, 150)
    data(first, 0, bytes(100))
    read_all(first)
    first.advance()
    assert first.size_bytes == 100  # the budget is exhausted
    second.release()
    data(first, 1, bytes(first.window_bytes))
    read_all(first)
    first.advance()
    assert first.size_bytes == 160
    first.discard()
    first.release()
    assert budget.granted_bytes == 0


# ends


@pytest.mark.parametrize("packet_type", [FINISH, CLOSE])
def test_the_end_is_reached_when_everything_is_read(packet_type: PacketType) -> None:  # 5.5, 5.9
    window = make()
    data(window, 0, b"abc")
    end(window, 1, b"abc", packet_type)
    assert window.finished
    assert window.closed == (packet_type is CLOSE)
    assert not window.at_end
    read_all(window)
    assert window.at_end


@pytest.mark.parametrize("wrong", [End(2, xxh3_128(b"abc").digest()), End(3, bytes(16)), end_of(b"abd")])
@pytest.mark.parametrize("early", [False, True])
def test_an_end_that_does_not_match_is_an_error(wrong: End, early: bool) -> None:  # 5.1
    window = make()
    if early:
        assert window.insert(FIRST + 1, FINISH, b"", wrong) is Arrival.OUT_OF_ORDER
        assert data(window, 0, b"abc") is Arrival.MISMATCH
    else:
        data(window, 0, b"abc")
        assert window.insert(FIRST + 1, FINISH, b"", wrong) is Arrival.MISMATCH
    assert not window.finished


def test_packets_without_bytes_of_the_stream_take_their_place() -> None:  # 2.7
    window = make()
    assert window.insert(FIRST + 1, OPTION, b"option", None) is Arrival.OUT_OF_ORDER
    assert window.insert(FIRST, OPTION, b"option", None) is Arrival.IN_ORDER
    assert window.next_sequence == FIRST + 2
    assert window.received_offset == 0


def test_data_without_bytes_is_no_chunk() -> None:  # 1.5: a hostile peer cannot hide the end with it
    window = make()
    data(window, 0, b"")
    assert not window.readable
    end(window, 1, b"")
    assert window.at_end


def test_a_discarding_window_keeps_nothing_and_misses_nothing() -> None:  # 5.2, 5.6
    window = make()
    data(window, 0, b"abc")
    data(window, 5, b"xyz")
    window.discard()
    assert (window.buffered_bytes, window.readable, window.gaps) == (0, False, False)
    assert window.next_sequence == FIRST + 6
    assert data(window, 3, b"x") is Arrival.DUPLICATE
    assert data(window, 8, bytes(2**21)) is Arrival.IN_ORDER
    assert window.next_sequence == FIRST + 9
    assert window.window_bytes == window.size_bytes
    assert window.advance() in (False, True)
    window.insert(FIRST + 9, CLOSE, b"", End(7, bytes(16)))
    assert window.closed
    assert window.window_bytes == window.size_bytes


# memory


def slices(body: bytes, *sizes: int) -> Iterator[memoryview]:
    view, at = memoryview(body), 0
    for size in sizes:
        yield view[at : at + size]
        at += size


def test_small_slices_are_copied_out_of_their_body() -> None:
    window = make()
    body = bytearray(64 * KIB)
    data(window, 0, memoryview(body)[: 64 * KIB - 1])
    data(window, 2, memoryview(body)[:100])
    assert window.pinned_bytes == 0
    body[:] = b"\xff" * len(body)
    assert read_all(window) == bytes(64 * KIB - 1)


def test_large_slices_are_charged_with_the_body_that_they_pin() -> None:
    window = make()
    body = bytes(128 * KIB)
    first, second = slices(body, 64 * KIB, 64 * KIB)
    data(window, 0, first)
    assert window.pinned_bytes == 64 * KIB
    data(window, 1, second)
    assert window.pinned_bytes == 0
    assert window.read(64 * KIB).obj is body  # type: ignore[union-attr]
    assert window.pinned_bytes == 64 * KIB
    window.read(30 * KIB)
    assert window.pinned_bytes == 94 * KIB
    window.read(34 * KIB)
    assert window.pinned_bytes == 0


def test_pinned_memory_makes_the_window_smaller() -> None:
    window = make()
    (part,) = slices(bytes(100 * KIB), 70 * KIB)
    data(window, 0, part)
    window.read(1)
    window.advance()
    assert window.window_bytes == 256 * KIB - 70 * KIB  # the edge did not move
    read_all(window)
    window.advance()
    assert window.window_bytes == 256 * KIB


def test_bodies_that_arrive_in_alternation_are_released_when_read() -> None:
    window = small(2**22)
    bodies = [bytes(200 * KIB), bytes(200 * KIB)]
    parts = [list(slices(body, *[64 * KIB] * 3)) for body in bodies]
    for number in range(6):
        data(window, number, parts[number % 2][number // 2])
    assert window.pinned_bytes > 0
    read_all(window)
    assert window.pinned_bytes == 0


def test_only_bytes_of_the_stream_are_kept_beyond_a_gap() -> None:
    window = make()
    (payload,) = slices(bytes(200 * KIB), 100 * KIB)
    window.insert(FIRST + 1, OPTION, payload, None)
    assert window.pinned_bytes == 0
    window.insert(FIRST, OPTION, payload, None)
    assert (window.pinned_bytes, window.next_sequence) == (0, FIRST + 2)


def test_a_payload_that_is_not_a_slice_is_kept_without_a_copy() -> None:
    window = make()
    whole = bytes(64 * KIB)
    data(window, 0, whole)
    assert window.read(1 << 20) is whole
    data(window, 1, whole)
    assert bytes(window.read(10)) == bytes(10)
    assert read_all(window) == bytes(64 * KIB - 10)
