"""The reaction to a proxy that asks for a password (407) although it has let requests pass before (PROTOCOL 7.9).

Some proxies do so now and then. But if the password has become wrong, many requests with it would lock an account. So
one request asks at a time, after pauses that grow, and the attempts end when the proxy has gone on for a minute.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["AskedPassword"]

_LEAST = 3  # 407s in a row that are needed for the end
_ROW_US = 60 * SECOND_US  # and their least time
_PAUSE_US_MIN = SECOND_US  # after the second one; doubles up to the maximum
_PAUSE_US_MAX = 30 * SECOND_US
_ASK_US = 500 * MILLISECOND_US  # the next request leaves no earlier than this after one that asks


class AskedPassword:
    """The 407s in a row: each came for a request that left after the one before had come, and the relay has answered
    no request that left meanwhile."""

    def __init__(self) -> None:
        self.next_us = 0
        """When the next request may leave."""
        self._count = 0
        self._first_us = 0
        self._newest_us = 0
        self._pause_us = 0

    @property
    def goes_on(self) -> bool:
        """Whether the proxy has asked, and the relay has not answered since."""
        return self._count > 0

    def refused(self, sent_us: int, spread: int, now: int) -> bool:
        """Record a 407 for a request that was sent at `sent_us`. Return whether it is final.

        `spread` is a random number below 2**16. It keeps endpoints from returning at the same moment.
        """
        if self._count and sent_us < self._newest_us:
            return False
        if not self._count:
            self._first_us = now
        self._count += 1
        self._newest_us = now
        if self._count > 1:
            self._pause_us = min(2 * self._pause_us, _PAUSE_US_MAX) or _PAUSE_US_MIN
        self.next_us = now + self._pause_us - (self._pause_us // 4 * spread >> 16)
        return self._count >= _LEAST and now - self._first_us >= _ROW_US

    def sent(self, now: int) -> None:
        """Record that a request leaves."""
        if self._count:
            self.next_us = now + max(_ASK_US, self._pause_us)

    def answered(self, sent_us: int) -> None:
        """Record that the relay has answered a request that was sent at `sent_us`."""
        if self._count and sent_us >= self._first_us:
            self.next_us = self._count = self._pause_us = 0
