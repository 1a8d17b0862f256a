"""The window of streamed answers (PROTOCOL 7.20)."""

from tunnel.exchange.config import KIB, MIB
from tunnel.exchange.path.stream_pace import StreamPace, beat_after_us

MS = 1000
SECOND = 1_000_000


def full(pace: StreamPace) -> None:
    assert not pace.allows(pace.window_bytes)


def make_pace(least_us: int = 20 * MS) -> StreamPace:
    pace = StreamPace()
    pace.on_confirmed(0, least_us)
    return pace


def test_the_window_doubles_while_it_is_the_limit_and_confirmations_come_in_time() -> None:
    pace, now = make_pace(), SECOND
    for _ in range(10):
        full(pace)
        pace.on_confirmed(now, now + 30 * MS)
        now += SECOND
    assert pace.window_bytes == 8 * MIB


def test_a_window_that_was_not_the_limit_stays() -> None:
    pace = make_pace()
    assert pace.allows(1000)
    pace.on_confirmed(SECOND, SECOND + 30 * MS)
    assert pace.window_bytes == 64 * KIB


def test_up_to_300_ms_between_confirmations_do_not_count_as_a_queue() -> None:
    pace = make_pace()
    full(pace)
    pace.on_confirmed(SECOND, SECOND + 20 * MS + 100 * MS + 320 * MS)
    assert pace.window_bytes == 128 * KIB
    full(pace)
    pace.on_confirmed(2 * SECOND, 2 * SECOND + 20 * MS + 101 * MS + 320 * MS)
    assert pace.window_bytes == 128 * KIB


def test_a_queue_of_half_a_second_halves_the_window_but_not_below_the_least() -> None:
    pace, now = make_pace(), SECOND
    for _ in range(3):
        full(pace)
        pace.on_confirmed(now, now + 30 * MS)
        now += SECOND
    for _ in range(9):
        now += 2 * SECOND
        pace.on_confirmed(now, now + 1100 * MS)
    assert pace.window_bytes == 64 * KIB


def test_envelopes_sent_before_the_window_changed_do_not_change_it_again() -> None:
    pace = make_pace()
    full(pace)
    pace.on_confirmed(SECOND, SECOND + 30 * MS)
    full(pace)
    pace.on_confirmed(SECOND + 10 * MS, SECOND + 40 * MS)
    assert pace.window_bytes == 128 * KIB


def test_a_failure_halves_the_window() -> None:
    pace = make_pace()
    full(pace)
    pace.on_confirmed(SECOND, SECOND + 30 * MS)
    pace.on_failed(2 * SECOND)
    assert pace.window_bytes == 64 * KIB


def test_patience_is_a_second_or_four_times_the_least_time() -> None:
    assert make_pace().patience_us == SECOND
    assert make_pace(600 * MS).patience_us == 2400 * MS


def test_envelopes_are_an_eighth_of_the_window_and_at_least_16_kib() -> None:
    pace = make_pace()
    assert pace.envelope_bytes == 16 * KIB
    pace.window_bytes = 8 * MIB
    assert pace.envelope_bytes == MIB


def test_beats_double_from_1_s_to_15_s() -> None:
    assert [beat_after_us(empty) // SECOND for empty in (0, 1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 15, 15, 15]
