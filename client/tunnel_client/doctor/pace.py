"""How many requests, or new connections, may begin in a time. No I/O."""

from collections import deque
from collections.abc import Iterable

__all__ = ["Budget"]


class Budget:
    """Lets at most `most` things begin in any `window_s` seconds. Times are in seconds, and never go back."""

    def __init__(self, most: int, window_s: float, times: Iterable[float] = ()) -> None:
        self.most = most
        self.window_s = window_s
        self._times: deque[float] = deque(times, maxlen=most)  # when the newest ones begin

    def take(self, now_s: float) -> float:
        """Take one, and return when it may begin."""
        at_s = self.free_s(now_s, 1)
        self._times.append(at_s)
        return at_s

    def free_s(self, now_s: float, count: int) -> float:
        """Return when `count` may begin at once (`most`, if that is less)."""
        at_s = max(now_s, self._times[-1]) if self._times else now_s
        excess = min(count, self.most) - (self.most - len(self._times))
        return max(at_s, self._times[excess - 1] + self.window_s) if excess > 0 else at_s

    def with_limits(self, most: int, window_s: float) -> "Budget":
        """Return a budget with other limits that knows what this one has let begin."""
        return Budget(most, window_s, self._times)
