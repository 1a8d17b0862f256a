"""Whether HTTP connections are used for more than one request. Some proxies close them soon after an answer.

A request that is sent while the proxy closes is lost, and must be repeated on a new connection. If that happens
repeatedly, a new connection for each request costs less.
"""

from collections import deque

__all__ = ["Reuse"]

_DEATHS_MAX = 3  # after this number of deaths of reused connections within the window, none is reused
_WINDOW_S = 60.0
_WITHOUT_S = 600.0  # time after which connections are reused again


class Reuse:
    """Decides whether connections are reused. Times are those of any clock that does not go back."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque(maxlen=_DEATHS_MAX)
        self._without_until_s = 0.0
        self._ignored_until_s = 0.0

    def is_wise(self, now_s: float) -> bool:
        """Return whether a connection may be used for another request."""
        return now_s >= self._without_until_s

    def on_died(self, now_s: float, *, reused: bool) -> None:
        """Record that a connection died before an answer began. `reused`: it had carried an answer before."""
        if not self.is_wise(now_s):
            # New connections die, too: the path loses them for another reason.
            if not reused:
                self._without_until_s = 0.0
                self._ignored_until_s = now_s + _WITHOUT_S
            return
        if not reused or now_s < self._ignored_until_s:
            return
        self._deaths.append(now_s)
        if len(self._deaths) == _DEATHS_MAX and now_s - self._deaths[0] <= _WINDOW_S:
            self._deaths.clear()
            self._without_until_s = now_s + _WITHOUT_S
