"""Times of streamed answers that both their ends keep (PROTOCOL 7.20)."""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["OWED_US", "beat_after_us"]

OWED_US = 300 * MILLISECOND_US  # 7.20: a confirmation may wait this long for a request that carries it
_BEATS_US = tuple(seconds * SECOND_US for seconds in (1, 2, 4, 8, 15))  # 7.20


def beat_after_us(empty: int) -> int:
    """Return how long after its newest envelope the relay sends an empty one, if it has sent `empty` empty envelopes
    in succession."""
    return _BEATS_US[min(empty, len(_BEATS_US) - 1)]
