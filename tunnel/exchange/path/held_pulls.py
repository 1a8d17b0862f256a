"""The number of pulls that may be held at once. It is learned, since a held pull may take a push's turn.

Some paths carry only a few requests at once; further requests wait until one of these ends. If held pulls take all
places, a push waits until a hold ends. The sign of this: a push takes long, and is answered just after a hold has
ended.

Not every push has to wait on such a path: some pass after a hold has ended, before the next pull takes the place. So
while the sign is recent, a quick answer is evidence against it only if as many pulls were held as are allowed. An
exchange that is late for another reason is evidence against it, too: in an upload, bodies wait for each other, and some
are answered just after a hold by chance. So each hold counts once, and the exchanges that waited in the same queue
count for nothing. While requests are refused because of their
number, pushes wait for other reasons, and the sign proves nothing.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["HeldPulls"]

_MOST = 2
_BLOCKED_US = 100 * MILLISECOND_US  # an exchange that exceeds the round trip by less was not kept waiting
# An exchange that is answered within this time plus two round trips after the end of a hold was waiting for that hold.
_AFTER_US = 20 * MILLISECOND_US
# Its answer can also arrive up to this long before the end of the hold, which comes on another connection.
_BEFORE_US = 20 * MILLISECOND_US
_RECENT_US = 10 * SECOND_US  # the sign counts as recent for this time; after a refusal, it is ignored for this time
_WAITED = 3  # what an exchange that waited for a hold adds to the count; evidence against it takes 1 away
_ENOUGH = 6  # the count at which one pull fewer is held
_AGAIN_US_MIN = 8 * SECOND_US  # wait before more pulls are held again; doubles up to the maximum
_LASTED_US = 60 * SECOND_US  # if all were held for this long, the wait begins at its minimum again
_AGAIN_US_MAX = 600 * SECOND_US


class HeldPulls:
    """How many pulls may be held at once. With 0, none may, since a held pull would keep every push waiting."""

    def __init__(self) -> None:
        self.most = _MOST
        self._expired_us = 0  # when a hold last ended without packets
        self._is_counted = True  # an exchange that waited for that hold was counted
        self._count = 0
        # Of the last exchange, if it was late and no hold had just ended: when it was answered, and what it took from
        # the count.
        self._late = (0, 0)
        self._waited_us = 0  # when the sign was last seen
        self._ignored_until_us = 0  # until then the sign is ignored
        self._again_us = 0  # when one more may be held again
        self._full_us = 0  # since when `most` has had its largest value
        self._wait_us = _AGAIN_US_MIN

    @property
    def are_free(self) -> bool:
        """False while the path is known to carry only a few requests at once."""
        return self.most == _MOST

    def on_refused(self, now: int) -> None:
        """Record that a request was refused because of the number of requests."""
        self._count = 0
        self._ignored_until_us = now + _RECENT_US

    def on_expired(self, lanes: int, now: int) -> bool:
        """Record that a hold has ended without packets. Return whether `most` changed."""
        self._expired_us = now
        self._is_counted = False
        answered_us, taken = self._late
        self._late = (0, 0)
        if now - answered_us > _BEFORE_US:
            return False
        self._count += taken
        return self._waited(lanes, now)

    def on_answered(self, sent_us: int, least_us: int, lanes: int, held_pulls: int, now: int) -> bool:
        """Learn from the answer to an exchange that the relay answers at once. Return whether `most` changed.

        The exchange was sent at `sent_us`; `least_us` is the round trip without queues, `lanes` the number of lanes,
        `held_pulls` the number of pulls that the relay can have held during the exchange's whole journey.
        """
        held_us, after_us = self._expired_us - sent_us, now - self._expired_us
        late = now - sent_us > least_us + _BLOCKED_US
        if late and held_us > 0:
            if self._is_counted or held_us < least_us + _BLOCKED_US or after_us > _AFTER_US + 2 * least_us:
                return False
            return self._waited(lanes, now)
        against = late or held_pulls >= self.most or now - self._waited_us > _RECENT_US
        taken = min(1, self._count) if against else 0
        self._count -= taken
        self._late = (now, taken) if late else (0, 0)
        return not late and self._allow_more(now)

    def _waited(self, lanes: int, now: int) -> bool:
        if now < self._ignored_until_us:
            return False
        self._waited_us = now
        self._is_counted = True
        self._count += _WAITED
        if self._count < _ENOUGH:
            return False
        self._count = 0
        if self.most == _MOST and now - self._full_us >= _LASTED_US:
            self._wait_us = _AGAIN_US_MIN
        self.most = max(0, min(self.most, _MOST if lanes > 2 else 1) - 1)
        self._again_us = now + self._wait_us
        self._wait_us = min(_AGAIN_US_MAX, 2 * self._wait_us)
        return True

    def _allow_more(self, now: int) -> bool:
        if self.most == _MOST or now < self._again_us:
            return False
        self.most += 1
        self._full_us = now
        self._count = _ENOUGH - _WAITED  # on trial: the first exchange that waits for a hold ends it
        self._again_us = now + _AGAIN_US_MIN
        return True
