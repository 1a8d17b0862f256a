"""Clauses 4.3 and 4.12: when an acknowledgement leaves, and what it contains."""

import pytest

from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.constants import NEVER_US
from tunnel.core.receive.acks import Receiver
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.wire import PacketType

FIRST = 2**32 + 2**32 - 1  # the next one has the wire number 0
DATA = PacketType.DATA


def make(window_bytes: int = 1000) -> tuple[Receiver, TimerTable]:
    config = EndpointConfig(
        window_bytes_min=window_bytes, window_bytes_start=window_bytes, window_bytes_max=window_bytes
    )
    timers = TimerTable()
    window = ReceiveWindow(config, WindowBudget(0), FIRST)
    return Receiver(window, timers, ConnectionStats(), lambda: 0), timers


def data(receiver: Receiver, number: int, now: int, payload: bytes = b"x", attempt: int = 0) -> Arrival:
    return receiver.insert(FIRST + number, attempt, DATA, payload, None, now)


def test_an_ack_that_left_early_is_not_due_when_its_timer_fires() -> None:
    receiver, timers = make()
    data(receiver, 0, 0)
    receiver.take_ack(10)
    timers.set(Timer.ACK_DELAY, 20)
    receiver.handle_timers(20)
    assert not receiver.ack_due


def test_data_sets_no_timer_when_an_ack_is_due_already() -> None:
    receiver, timers = make()
    receiver.request_ack(0)
    data(receiver, 0, 1)
    assert timers.get(Timer.ACK_DELAY) == NEVER_US


def test_sixteen_kilobytes_are_acknowledged_after_a_millisecond() -> None:  # 4.3
    receiver, _ = make(64 * 1024)
    data(receiver, 0, 0)
    receiver.take_ack(0)
    data(receiver, 1, 10, bytes(16 * 1024 - 1))
    assert not receiver.may_ack(1_000)
    data(receiver, 2, 20)
    assert not receiver.may_ack(999)
    assert receiver.may_ack(1_000)
    receiver.take_ack(1_000)
    data(receiver, 3, 1_010, bytes(16 * 1024 - 1))
    assert not receiver.may_ack(2_000)


SECOND = 1_000_000


def grown(times: list[int], size: int = 50, round_trip_us: int = 0) -> list[int]:
    """Return the window's size after each packet; packets come at these times and are read at once."""
    config = EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=1000)
    window = ReceiveWindow(config, WindowBudget(900), FIRST)
    receiver = Receiver(window, TimerTable(), ConnectionStats(), lambda: round_trip_us)
    sizes = []
    for number, now in enumerate(times):
        data(receiver, number, now, bytes(size))
        receiver.window.read(size)
        receiver.on_read(now)
        sizes.append(receiver.window.size_bytes)
    return sizes


def test_a_window_that_is_filled_within_two_seconds_grows() -> None:
    # The count begins after the first packet: the third completes a window.
    assert grown([0, 1, 2 * SECOND - 1]) == [100, 100, 200]
    assert grown([0, 1, 2 * SECOND]) == [100, 100, 100]


@pytest.mark.parametrize(
    ("round_trip_us", "limit_us"),
    [(SECOND // 2, 2 * SECOND), (SECOND, 4 * SECOND), (3 * SECOND, 12 * SECOND), (30 * SECOND, 60 * SECOND)],
)
def test_on_a_long_path_a_window_may_take_four_round_trips(round_trip_us: int, limit_us: int) -> None:
    """With a round trip of 2 s, a full window takes longer than 2 s: with a limit of 2 s, no window would ever grow."""
    assert grown([0, 1, limit_us - 1], round_trip_us=round_trip_us) == [100, 100, 200]
    assert grown([0, 1, limit_us], round_trip_us=round_trip_us) == [100, 100, 100]


def test_each_window_is_timed_by_itself() -> None:
    assert grown([0, 1, 5 * SECOND, 5 * SECOND, 7 * SECOND - 1]) == [100, 100, 100, 100, 200]
    assert grown([0, 1, 5 * SECOND, 5 * SECOND, 7 * SECOND]) == [100, 100, 100, 100, 100]


def test_the_first_packet_does_not_grow_the_window() -> None:
    assert grown([0], size=70) == [100]


def test_every_packet_that_is_not_taken_is_counted() -> None:
    config = EndpointConfig(window_bytes_min=100, window_bytes_start=100, window_bytes_max=100)
    stats = ConnectionStats()
    receiver = Receiver(ReceiveWindow(config, WindowBudget(0), FIRST), TimerTable(), stats, lambda: 0)
    data(receiver, 0, 0)
    for _ in range(2):
        assert data(receiver, 0, 0) is Arrival.DUPLICATE
        assert data(receiver, 1, 0, bytes(100)) is Arrival.REFUSED
    assert (stats.packets_duplicate, stats.packets_discarded) == (2, 2)


def test_a_delay_too_long_for_its_field_becomes_the_largest_value() -> None:  # 2.4
    receiver, _ = make()
    data(receiver, 0, 0)
    assert receiver.take_ack(5_000_000_000).delay_us == 0xFFFFFFFF
