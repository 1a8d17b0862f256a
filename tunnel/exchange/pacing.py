"""Pacing without an estimator: body sizes, the number of lanes and the hold, each learned and allowed to grow again.

What is under way is lanes times body. Both grow while they are the limit and exchanges take hardly longer than the
round trip; that they take longer shows a queue, and a queue is what interactive streams suffer from.
"""

from tunnel.exchange.config import KIB, MILLISECOND_US, SECOND_US

__all__ = ["BodyLimit", "HoldLimit", "LaneCount"]

_GROW_EXTRA_US = 100 * MILLISECOND_US  # beyond the round trip: less, and a body may double
_SHRINK_EXTRA_US = 500 * MILLISECOND_US  # more, and it halves
_REFUSED_US_MIN = 30 * SECOND_US  # until a size that was answered 413 is tried again; doubles each time
_REFUSED_US_MAX = 600 * SECOND_US
_BODY_FLOOR_BYTES = 16 * KIB  # 7.9
_IDLE_US = 5 * SECOND_US  # unused for so long, a lane is given back
_HOLD_SUCCESSES = 4  # holds that were endured before a longer one is tried; doubles each time that fails


class BodyLimit:
    """The largest body of one direction."""

    def __init__(self, start_bytes: int, bytes_min: int, bytes_max: int) -> None:
        self.limit_bytes = start_bytes
        self._own_bytes_min = self._bytes_min = bytes_min
        self._own_bytes_max = self._bytes_max = bytes_max
        self._changed_us = -1  # exchanges sent before tell nothing about the present limit
        self._refused_bytes = 0  # answered 413; 0: never
        self._refused_until_us = 0
        self._refused_us = _REFUSED_US_MIN

    def bound(self, bytes_max: int) -> None:
        """The relay takes no more than this."""
        self._bytes_max = min(self._own_bytes_max, max(1, bytes_max))
        self._bytes_min = min(self._own_bytes_min, self._bytes_max)
        self.limit_bytes = min(self.limit_bytes, self._bytes_max)

    def is_full(self, body_bytes: int) -> bool:
        """Whether a body of this size shows that the limit is what limits. Packets are up to an eighth of a body."""
        return body_bytes * 4 >= self.limit_bytes * 3

    def answered(self, sent_us: int, extra_us: int, now: int) -> bool:
        """A full body sent at `sent_us` took so much longer than the round trip. Returns whether only more lanes could
        carry more: the exchange was quick, and the body may not grow."""
        if sent_us < self._changed_us:
            return False
        if extra_us > _SHRINK_EXTRA_US:
            self._set(max(self._bytes_min, self.limit_bytes // 2), now)
            return False
        grown = min(self._bytes_max, self.limit_bytes * 2)
        if grown >= self._refused_bytes > 0 and now < self._refused_until_us:
            grown = self.limit_bytes
        if extra_us < _GROW_EXTRA_US and grown > self.limit_bytes:
            self._set(grown, now)
            return False
        return True

    def refused(self, body_bytes: int, now: int) -> bool:
        """A body of this size was answered 413. Returns whether smaller ones may be tried; else it is at the floor."""
        if body_bytes <= min(self._bytes_min, _BODY_FLOOR_BYTES):
            return False
        if self._refused_bytes and now >= self._refused_until_us:
            self._refused_us = min(_REFUSED_US_MAX, 2 * self._refused_us)
        self._refused_bytes = body_bytes
        self._refused_until_us = now + self._refused_us
        # The size itself, not the limit, is halved: several lanes may be told at once.
        self._set(min(self.limit_bytes, max(self._bytes_min, body_bytes // 2)), now)
        return True

    def _set(self, limit_bytes: int, now: int) -> None:
        self.limit_bytes = limit_bytes
        self._changed_us = now


class LaneCount:
    """How many lanes are in use."""

    def __init__(self, start: int, most: int, *, adapt: bool) -> None:
        self.count = start
        self.most = most
        self._start = start
        self._own_most = most
        self._adapt = adapt
        self._changed_us = -1
        self._failed_us = -1

    def bound(self, most: int) -> None:
        """The relay allows no more than this."""
        self.most = min(self._own_most, max(1, most))
        self.count = min(max(self.count, self._start), self.most)

    def failed(self, now: int) -> None:
        """An exchange failed."""
        self._failed_us = now

    def pressed(self, sent_us: int, extra_us: int, round_trip_us: int, now: int) -> bool:
        """A full body that may not grow, sent at `sent_us`, took so much longer than the round trip. Returns whether
        there is a lane more: as long as what is under way does not fill the round trip, and nothing fails."""
        if not self._adapt or self.count >= self.most or sent_us < max(self._changed_us, self._failed_us + 1):
            return False
        if extra_us >= _GROW_EXTRA_US + round_trip_us // 2:
            return False
        self.count += 1
        self._changed_us = now
        return True

    def idle_until_us(self, used_us: int) -> int | None:
        """When the highest lane, last used at `used_us`, is to be given back; None: it stays. Two stay, however many
        there were at first: on one alone a pull that is held would bar all pushes."""
        return used_us + _IDLE_US if self.count > max(2, self._start) else None

    def give_back(self) -> None:
        """The highest lane has been idle for long."""
        self.count -= 1


class HoldLimit:
    """How long the path lets a response wait. Proxies and NATs that cut idle exchanges do so at their own fixed age."""

    def __init__(self, hold_us: int, hold_us_min: int) -> None:
        self.hold_us = hold_us
        self._own_hold_us_min = self._hold_us_min = hold_us_min
        self._own_hold_us_max = self._hold_us_max = hold_us
        self._cut_us = 0  # age at the last cut, 0 for none
        self._successes = 0
        self._successes_needed = _HOLD_SUCCESSES

    def bound(self, hold_us_max: int) -> None:
        """The relay holds no longer than this."""
        self._hold_us_max = min(self._own_hold_us_max, hold_us_max)
        self._hold_us_min = min(self._own_hold_us_min, self._hold_us_max)
        self.hold_us = max(self._hold_us_min, min(self.hold_us, self._hold_us_max))

    def endured(self, age_us: int) -> None:
        """A pull was answered after this time, at its first attempt."""
        if age_us * 4 >= self._cut_us * 3:
            self._cut_us = 0
        if age_us * 4 < self.hold_us * 3:
            return
        self._successes += 1
        if self._successes >= self._successes_needed and self.hold_us < self._hold_us_max:
            self.hold_us = min(self._hold_us_max, 2 * self.hold_us)
            self._successes = 0
            self._successes_needed = min(2 * self._successes_needed, 16 * _HOLD_SUCCESSES)

    def cut(self, age_us: int) -> None:
        """A pull failed at this age while the path was fine. Halves at the second time at a similar age."""
        if age_us < self._hold_us_min:
            return
        if self._cut_us and abs(age_us - self._cut_us) <= max(SECOND_US, self._cut_us // 4):
            self.hold_us = max(self._hold_us_min, self.hold_us // 2)
            self._successes = 0
            self._cut_us = 0
        else:
            self._cut_us = age_us
