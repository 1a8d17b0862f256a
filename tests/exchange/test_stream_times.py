"""Times of streamed answers (PROTOCOL 7.20)."""

from tunnel.exchange.config import SECOND_US
from tunnel.exchange.stream_times import beat_after_us


def test_beats_double_from_1_s_to_15_s() -> None:
    assert [beat_after_us(empty) // SECOND_US for empty in (0, 1, 2, 3, 4, 5, 99)] == [1, 2, 4, 8, 15, 15, 15]
