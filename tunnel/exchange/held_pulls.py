"""The number of pulls that may be held at once. It is learned, since a held pull may take a push's turn.

Some paths carry only a few requests at once; further requests wait until one of these ends. If held pulls take all
places, a push waits until a hold ends. The sign of this: no exchange is answered until just after a hold has ended.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["HeldPulls"]

_MOST = 2
_BLOCKED_US = 100 * MILLISECOND_US  # an exchange that exceeds the round trip by less was not kept waiting
# An exchange that is answered within this time plus two round trips after the end of a hold was waiting for that hold.
_AFTER_US = 20 * MILLISECOND_US
_BLOCKED_MAX = 2  # exchanges in succession that waited for a hold
_AGAIN_US_MIN = 60 * SECOND_US  # wait before more pulls are held again; doubles up to the maximum
_AGAIN_US_MAX = 600 * SECOND_US


class HeldPulls:
    """How many pulls may be held at once. With 0, none may, since a held pull would keep every push waiting."""

    def __init__(self) -> None:
        self.most = _MOST
        self._expired_us = 0  # when a hold last ended without packets
        self._blocked = 0
        self._again_us = 0  # when one more may be held again
        self._wait_us = _AGAIN_US_MIN

    @property
    def are_free(self) -> bool:
        """False while the path is known to carry only a few requests at once."""
        return self.most == _MOST

    def expired(self, now: int) -> None:
        """Record that a hold has ended without packets."""
        self._expired_us = now

    def answered(self, sent_us: int, least_us: int, lanes: int, now: int) -> bool:
        """Learn from the answer to an exchange that the relay answers at once. Return whether `most` changed.

        The exchange was sent at `sent_us`; `least_us` is the round trip without queues, `lanes` the number of lanes.
        """
        if now - sent_us <= least_us + _BLOCKED_US:
            self._blocked = 0
            return self._allow_more(now)
        held_us, after_us = self._expired_us - sent_us, now - self._expired_us
        waited = held_us >= least_us + _BLOCKED_US and 0 <= after_us <= _AFTER_US + 2 * least_us
        self._blocked = self._blocked + 1 if waited else 0
        if self._blocked < _BLOCKED_MAX:
            return False
        self._blocked = 0
        self.most = max(0, min(self.most, _MOST if lanes > 2 else 1) - 1)
        self._again_us = now + self._wait_us
        self._wait_us = min(_AGAIN_US_MAX, 2 * self._wait_us)
        return True

    def _allow_more(self, now: int) -> bool:
        if self.most == _MOST or now < self._again_us:
            return False
        self.most += 1
        self._again_us = now + self._wait_us
        return True
