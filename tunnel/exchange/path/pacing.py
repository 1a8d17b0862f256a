"""Pacing without an estimate of bandwidth: it learns body sizes, the number of lanes and the hold. Each can grow again.

The amount in flight is the number of lanes times the body size. Both grow while they are the limit and exchanges take
hardly longer than the round trip. Longer exchanges show a queue, and a queue delays interactive streams.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["BodyLimit", "HoldLimit", "LaneCount"]

_GROW_EXTRA_US = 100 * MILLISECOND_US  # a body limit may double if an exchange exceeds the round trip by less than this
_SHRINK_EXTRA_US = 500 * MILLISECOND_US  # a body limit halves if an exchange exceeds the round trip by more than this
# 7.16: refusals lower the limit of requests as far as this. The control packets of a connection need 1 KiB of it, the
# rest is for the exchange and its form.
_REFUSED_BYTES_MIN = 1536
_REFUSED_US_MIN = 30 * SECOND_US  # wait before a size that was refused is tried again; doubles if that fails
_REFUSED_US_MAX = 600 * SECOND_US
# The first trial of a larger body begins at least this long after the first extra time between _GROW_EXTRA_US
# and _SHRINK_EXTRA_US.
_TRIAL_DELAY_US = 2 * SECOND_US
_TRIAL_ANSWERS = 3  # number of full bodies whose mean time is compared
_TRIAL_US_MIN = 30 * SECOND_US  # wait after a trial that failed; doubles up to _REFUSED_US_MAX
_IDLE_US = 5 * SECOND_US  # a lane that was unused for this long is given back
# Number of full holds that must succeed before a longer one is tried. It doubles, up to 16 times this number, when a
# hold that has grown must shrink.
_HOLD_SUCCESSES = 4


class _Cost:
    """The extra time of full bodies, split into a part that grows with their size and a part that does not.

    On a path that limits the number of requests, an exchange waits for its turn and takes long whatever its size.
    Smaller bodies would only need more turns. Comparing two sizes gives the two parts.
    """

    def __init__(self) -> None:
        self.queue_us = 0  # the part that does not grow with the size
        self.count = 0  # exchanges measured at the present size
        self._sum_us = 0
        self._from_us = 0  # exchanges sent before this may have waited for bodies of another size
        self._before: tuple[int, int] | None = None  # another size, and its mean extra time

    def measure(self, sent_us: int, extra_us: int, size_bytes: int) -> None:
        """Learn from a full body of the present size."""
        extra_us = max(0, extra_us)
        if sent_us >= self._from_us:
            self.count += 1
            self._sum_us += extra_us
            if self._before is not None:
                before_bytes, before_us = self._before
                mean_us = self._sum_us // self.count
                growing_us = (mean_us - before_us) * size_bytes // (size_bytes - before_bytes)
                self.queue_us = max(0, mean_us - max(0, growing_us))
        self.queue_us = min(self.queue_us, extra_us)  # no turn takes longer than the whole exchange

    def change(self, size_bytes: int, extra_us: int, now: int) -> None:
        """Begin another size.

        The size so far was `size_bytes`; its latest body took `extra_us` longer than the round trip.
        """
        self._before = (size_bytes, self._sum_us // self.count if self.count else max(0, extra_us))
        self._from_us = now + max(0, extra_us)
        self.count = self._sum_us = 0

    def forget(self, now: int) -> None:
        """Begin another size without a comparison, because another reason than time changed it."""
        self._before = None
        self._from_us = now
        self.count = self._sum_us = 0


class BodyLimit:
    """The limit of body sizes in one direction. Refusals lower it as far as `floor_bytes`, slowness to `bytes_min`."""

    def __init__(self, start_bytes: int, bytes_min: int, bytes_max: int, floor_bytes: int = _REFUSED_BYTES_MIN) -> None:
        self.limit_bytes = start_bytes
        self._floor_bytes = floor_bytes
        self._own_bytes_min = self._bytes_min = bytes_min
        self._own_bytes_max = self._bytes_max = bytes_max
        self._changed_us = -1  # exchanges sent before this say nothing about the present limit
        self._refused_bytes = 0  # size of the last body that was refused; 0: none was
        self._refused_until_us = 0
        self._refused_us = _REFUSED_US_MIN
        self._cost = _Cost()
        self._trial_bytes = 0  # the limit before a trial that is under way; 0: none is
        self._trial_from_us = 0  # the next trial begins no earlier
        self._trial_us = _TRIAL_US_MIN

    @property
    def queue_us(self) -> int:
        """The part of the extra time of exchanges that does not depend on their size."""
        return self._cost.queue_us

    def limit_to(self, bytes_max: int) -> None:
        """Keep the limit within the relay's largest body."""
        self._bytes_max = min(self._own_bytes_max, max(1, bytes_max))
        self._bytes_min = min(self._own_bytes_min, self._bytes_max)
        self.limit_bytes = min(self.limit_bytes, self._bytes_max)

    def is_full(self, body_bytes: int) -> bool:
        """Return whether a body of this size was as large as the limit allows.

        Three quarters count as full, since packets are up to an eighth of a body and do not fill it exactly.
        """
        return body_bytes * 4 >= self.limit_bytes * 3

    def on_answered(self, sent_us: int, extra_us: int, now: int) -> bool:
        """Learn from a full body that was sent at `sent_us` and took `extra_us` longer than the round trip.

        Return whether only more lanes could carry more: the exchange was not slow, but the body may not grow.
        """
        if sent_us < self._changed_us:
            return False
        self._cost.measure(sent_us, extra_us, self.limit_bytes)
        own_us = extra_us - self._cost.queue_us
        is_slow = own_us > _SHRINK_EXTRA_US
        smaller = min(self.limit_bytes, max(self._bytes_min, self.limit_bytes // 2))
        # The smallest bodies may have been compared while a queue changed: a trial of larger ones has its whole time.
        if is_slow and smaller < self.limit_bytes and self._trial_bytes != self._bytes_min:
            self._resize(smaller, extra_us, now)
            return False
        grown = min(self._bytes_max, self.limit_bytes * 2)
        if self.is_refused(grown, now):
            grown = self.limit_bytes
        # No slowness lowers a limit below the minimum, so none keeps it there: a round trip that varies looks like it.
        if own_us < _GROW_EXTRA_US or self.limit_bytes < self._bytes_min:
            if grown == self.limit_bytes:
                return not is_slow
            self._resize(grown, extra_us, now)
            return False
        return not self._try(grown, extra_us, now) and not is_slow

    def _try(self, grown: int, extra_us: int, now: int) -> bool:
        """Begin or end a trial of a larger body, to learn whether the time depends on the size. Return whether the
        limit changed."""
        if self._trial_bytes:
            if self._cost.count < _TRIAL_ANSWERS:
                return False
            self._trial_from_us = now + self._trial_us
            self._trial_us = min(_REFUSED_US_MAX, 2 * self._trial_us)
            self._resize(min(self.limit_bytes, self._trial_bytes), extra_us, now)
            return True
        if self._trial_from_us == 0:
            self._trial_from_us = now + _TRIAL_DELAY_US
        if now < self._trial_from_us or self._cost.count < _TRIAL_ANSWERS or grown == self.limit_bytes:
            return False
        before_bytes = self.limit_bytes
        self._resize(grown, extra_us, now)
        self._trial_bytes = before_bytes
        return True

    def below(self, body_bytes: int) -> int:
        """Return the size that is tried after a body of this one, if it is refused."""
        return max(min(self._bytes_min, self._floor_bytes), body_bytes // 2)

    def is_refused(self, body_bytes: int, now: int) -> bool:
        """Return whether a body of at most this size was refused so recently that the size is not tried again yet."""
        return body_bytes >= self._refused_bytes and now < self._refused_until_us

    def on_refused(self, body_bytes: int, now: int, *, passed_bytes: int = -1) -> bool:
        """Learn from a body that was refused, perhaps for its size. Return whether smaller ones may be tried.

        `passed_bytes`, if not -1: it took seconds to find that out, so that the limit grows again from the smallest
        half, quarter and so on of this size which is not below what has passed.
        """
        if self.below(body_bytes) >= body_bytes:
            return False
        if self._refused_bytes and now >= self._refused_until_us:
            self._refused_us = min(_REFUSED_US_MAX, 2 * self._refused_us)
        self._refused_bytes = body_bytes
        self._refused_until_us = now + self._refused_us
        smaller = self.below(body_bytes)
        while passed_bytes >= 0 and self.below(smaller) < smaller and smaller // 2 >= passed_bytes:
            smaller = self.below(smaller)
        # Halve the size itself and not the limit, since several lanes may be refused at the same time.
        self.limit_bytes = min(self.limit_bytes, smaller)
        self._changed_us = now
        self._trial_bytes = 0
        self._cost.forget(now)
        return True

    def _resize(self, limit_bytes: int, extra_us: int, now: int) -> None:
        self._cost.change(self.limit_bytes, extra_us, now)
        self.limit_bytes = limit_bytes
        self._changed_us = now
        self._trial_bytes = 0


class LaneCount:
    """The number of lanes in use."""

    def __init__(self, start: int, most: int, *, adapt: bool) -> None:
        self.count = start
        self.most = most
        self._start = start
        self._own_most = most
        self._adapt = adapt
        self._changed_us = -1
        self._failed_us = -1

    def limit_to(self, most: int) -> None:
        """Keep the number within the lanes that the relay allows."""
        self.most = min(self._own_most, max(1, most))
        self.count = min(max(self.count, self._start), self.most)

    def on_failed(self, now: int) -> None:
        """Record that an exchange failed."""
        self._failed_us = now

    def on_pressed(self, sent_us: int, extra_us: int, round_trip_us: int, now: int) -> bool:
        """Add a lane if exchanges take hardly longer than the round trip and nothing fails: the path has room for more.

        Return whether one was added. Call this method after a full body that may not grow, which was sent at `sent_us`
        and took `extra_us` longer than the round trip.
        """
        if not self._adapt or self.count >= self.most or sent_us < max(self._changed_us, self._failed_us + 1):
            return False
        if extra_us >= _GROW_EXTRA_US + round_trip_us // 2:
            return False
        self.count += 1
        self._changed_us = now
        return True

    def add(self) -> bool:
        """Add a lane for a probe (7.16), or to ask for or confirm a stream (7.20). Return whether one was added."""
        if self.count >= self.most:
            return False
        self.count += 1
        return True

    def idle_until_us(self, used_us: int) -> int | None:
        """Return when the highest lane, last used at `used_us`, is to be given back; None if it stays.

        Two lanes stay even if there was only one at first: on a single lane a held pull would block all pushes.
        """
        return used_us + _IDLE_US if self.count > max(2, self._start) else None

    def give_back(self) -> None:
        """Give the highest lane back, after it has been idle for long enough."""
        self.count -= 1


class HoldLimit:
    """The longest time for which the path lets a response wait.

    Proxies and NATs that cut idle exchanges cut each of them at the same age. A hold that has grown is on trial until a
    response has waited for three quarters of it. If a response is cut during the trial, at the age of the previous hold
    or later, the previous hold is used again, and the next trial comes later. The age of streamed answers is learned in
    the same way.
    """

    def __init__(self, hold_us_max: int, hold_us_min: int, hold_us_start: int | None = None) -> None:
        self._own_hold_us_min = self._hold_us_min = hold_us_min
        self._own_hold_us_max = self._hold_us_max = hold_us_max
        start_us = hold_us_max if hold_us_start is None else hold_us_start
        self.hold_us = max(hold_us_min, min(start_us, hold_us_max))
        self._usual_us = self.hold_us  # the hold to which a trial falls back; equal to the hold outside trials
        self._cut_us = 0  # age of the exchange at the last cut; 0: none
        self._successes = 0
        self._successes_needed = _HOLD_SUCCESSES
        self._has_grown = False  # since it last shrank

    def limit_to(self, hold_us_max: int) -> None:
        """Keep the hold within the relay's longest hold."""
        self._hold_us_max = min(self._own_hold_us_max, hold_us_max)
        self._hold_us_min = min(self._own_hold_us_min, self._hold_us_max)
        self.hold_us = max(self._hold_us_min, min(self.hold_us, self._hold_us_max))
        self._usual_us = max(self._hold_us_min, min(self._usual_us, self.hold_us))

    def on_endured(self, age_us: int) -> None:
        """Learn from a response that came, or ended properly, at `age_us`."""
        if age_us * 4 >= self._cut_us * 3:
            self._cut_us = 0
        if age_us * 4 < self.hold_us * 3:
            return
        self._usual_us = self.hold_us
        self._successes += 1
        if self._successes >= self._successes_needed and self.hold_us < self._hold_us_max:
            self.hold_us = min(self._hold_us_max, 2 * self.hold_us)
            self._successes = 0
            self._has_grown = True

    def cut(self, age_us: int) -> None:
        """Learn from a response that was cut at `age_us` while the path was fine. Outside a trial, the second cut at a
        similar age halves the hold."""
        if age_us < self._hold_us_min:
            return
        if self._usual_us < self.hold_us and self._usual_us <= age_us:
            self._shrink(self._usual_us)
        elif self._cut_us and abs(age_us - self._cut_us) <= max(SECOND_US, self._cut_us // 4):
            self._shrink(max(self._hold_us_min, self.hold_us // 2))
        else:
            self._cut_us = age_us

    def _shrink(self, hold_us: int) -> None:
        if self._has_grown:
            self._successes_needed = min(2 * self._successes_needed, 16 * _HOLD_SUCCESSES)
        self.hold_us = self._usual_us = hold_us
        self._successes = self._cut_us = 0
        self._has_grown = False
