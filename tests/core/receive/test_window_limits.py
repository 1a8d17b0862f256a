"""More tests of the receive window: its limits to the byte, the cost of bodies, and when it grows."""

import pytest

from tests.core.receive_bench import CLOSE, FIRST, KIB, OPTION, data, end, make, small
from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.receive.window import Arrival, ReceiveWindow

GROWING = EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=1000)


# limits


def test_the_window_takes_its_full_size_beyond_a_gap_too() -> None:  # 4.1
    window = small(100)
    assert data(window, 1, bytes(100)) is Arrival.OUT_OF_ORDER
    assert data(window, 2, b"x") is Arrival.REFUSED
    # A packet without bytes of the stream needs no room.
    assert window.insert(FIRST + 2, OPTION, b"option", None) is Arrival.OUT_OF_ORDER


def test_everything_beyond_a_gap_counts_together() -> None:
    window = small(100)
    for number, size in ((1, 60), (2, 10)):
        assert data(window, number, bytes(size)) is Arrival.OUT_OF_ORDER
    assert data(window, 3, bytes(31)) is Arrival.REFUSED
    assert data(window, 3, bytes(30)) is Arrival.OUT_OF_ORDER


def test_bytes_beyond_a_gap_count_once_when_the_gap_is_filled() -> None:
    window = small(100)
    data(window, 1, bytes(30))
    data(window, 0, bytes(10))
    assert data(window, 3, bytes(60)) is Arrival.OUT_OF_ORDER
    assert data(window, 4, b"x") is Arrival.REFUSED


def test_the_same_room_is_announced_once() -> None:  # 4.12
    window = small(100)
    data(window, 0, bytes(100))
    window.read(25)
    assert window.advance()
    assert not window.advance()


def test_the_quarter_that_an_update_waits_for_is_rounded_down() -> None:  # 4.12
    window = small(103)
    data(window, 0, bytes(103))
    window.read(24)
    assert not window.advance()
    window.read(1)
    assert window.advance()


# growth


@pytest.mark.parametrize(("received", "size_after"), [(75, 100), (76, 200)])
def test_the_sender_has_used_the_window_up_when_less_than_a_quarter_is_left(received: int, size_after: int) -> None:
    window = make(GROWING)
    data(window, 0, bytes(received))
    window.read(received)
    window.advance()
    assert window.size_bytes == size_after


def test_the_reader_keeps_pace_when_less_than_a_quarter_waits_for_it() -> None:
    window = make(GROWING)
    data(window, 0, bytes(76))
    window.read(51)
    window.advance()
    assert window.size_bytes == 100
    window.read(1)
    window.advance()
    assert window.size_bytes == 200


def test_a_discarding_window_takes_nothing_from_the_budget() -> None:
    budget = WindowBudget(1 << 20)
    window = ReceiveWindow(GROWING, budget, FIRST)
    data(window, 0, bytes(80))
    window.discard()
    window.advance()
    assert (window.size_bytes, budget.granted_bytes) == (100, 0)


# chunks and bodies


def test_small_slices_are_gathered_up_to_64_kib() -> None:
    window = make()
    for number in range(16):
        data(window, number, bytes(4095))
    data(window, 16, bytes(16))
    data(window, 17, b"x")
    assert [len(window.read(1 << 20)), len(window.read(1 << 20))] == [64 * KIB, 1]


def test_slices_of_4_kib_are_handed_on_without_gathering() -> None:
    window = make()
    data(window, 0, b"x")
    data(window, 1, bytes(4 * KIB))
    assert [len(window.read(1 << 20)), len(window.read(1 << 20))] == [1, 4 * KIB]


@pytest.mark.parametrize(
    ("body_kib", "slice_kib", "window_kib", "kept"),
    [
        (512, 128, 256, True),  # a quarter of its body: kept, however large the body is
        (300, 64, 600, True),  # less than a quarter: kept, as the window is twice as large as the body
        (300, 64, 599, False),
    ],
)
def test_slices_are_kept_or_copied_by_their_share(body_kib: int, slice_kib: int, window_kib: int, kept: bool) -> None:
    window = small(window_kib * KIB)
    data(window, 0, memoryview(bytes(body_kib * KIB))[: slice_kib * KIB])
    assert window.pinned_bytes == ((body_kib - slice_kib) * KIB if kept else 0)


def test_a_released_body_is_charged_again_when_more_of_it_arrives() -> None:
    window = make()
    body = memoryview(bytes(128 * KIB))
    data(window, 0, body[: 64 * KIB])
    window.read(64 * KIB)
    assert window.pinned_bytes == 0
    data(window, 1, body[64 * KIB :])
    assert window.pinned_bytes == 64 * KIB


def test_slices_that_waited_beyond_a_gap_are_charged_once() -> None:
    window = make()
    body = memoryview(bytes(128 * KIB))
    data(window, 1, body[64 * KIB :])
    assert window.pinned_bytes == 64 * KIB
    data(window, 0, body[: 64 * KIB])
    assert window.pinned_bytes == 0
    window.read(64 * KIB)
    assert window.pinned_bytes == 64 * KIB
    window.read(64 * KIB)
    assert window.pinned_bytes == 0


# the end of a discarding window


def test_a_discarding_window_is_closed_by_close_alone() -> None:  # 5.6
    window = make()
    window.discard()
    data(window, 0, b"x")
    assert not window.closed
    end(window, 1, b"x", CLOSE)
    assert window.closed


@pytest.mark.parametrize("closed", [False, True])
def test_a_close_beyond_a_gap_counts_when_everything_is_discarded(closed: bool) -> None:  # 5.2
    window = make()
    data(window, 1, b"x")
    if closed:
        end(window, 2, b"xx", CLOSE)
    window.discard()
    assert window.closed is closed
