"""Paths that limit requests: their rate, or how many are under way at once."""

from collections import deque
from collections.abc import Callable
from random import Random

from tests.exchange.loop import Fate, Loop, abandoned
from tunnel.exchange import Request

__all__ = [
    "Bucket",
    "Estimate",
    "LateLoop",
    "Passes",
    "Periods",
    "RateBan",
    "SlotLoop",
    "Window",
    "refused_at_random",
]

Passes = Callable[[int], bool]


class Bucket:
    """A limit of requests, as proxies set one: `burst` requests at once, and one more after each interval.

    With `counts_all`, refused requests use the limit up, too.
    """

    def __init__(self, interval_us: int, burst: int = 1, *, counts_all: bool = False) -> None:
        self._interval_us = interval_us
        self._burst = burst
        self._counts_all = counts_all
        self._level = 0.0
        self._at_us = 0

    def __call__(self, now: int) -> bool:
        self._level = max(0.0, self._level - (now - self._at_us) / self._interval_us)
        self._at_us = now
        passes = self._level + 1 <= self._burst
        if passes or self._counts_all:
            self._level = min(self._level + 1, 2 * self._burst)
        return passes


class Window:
    """A limit of the requests in the last second, or another time, which counts refused ones, too, by default."""

    def __init__(self, most: int, window_us: int = 1_000_000, *, counts_all: bool = True) -> None:
        self._most = most
        self._window_us = window_us
        self._counts_all = counts_all
        self._times: deque[int] = deque()

    def __call__(self, now: int) -> bool:
        while self._times and self._times[0] <= now - self._window_us:
            self._times.popleft()
        passes = len(self._times) < self._most
        if passes or self._counts_all:
            self._times.append(now)
        return passes


class Periods:
    """A limit of the requests in each period; the first one began at `start_us`. It counts no refused ones."""

    def __init__(self, most: int, start_us: int, period_us: int = 1_000_000) -> None:
        self._most = most
        self._start_us = start_us
        self._period_us = period_us
        self._period = -1
        self._count = 0

    def __call__(self, now: int) -> bool:
        period = (now - self._start_us) // self._period_us
        if period != self._period:
            self._period, self._count = period, 0
        self._count += 1
        return self._count <= self._most


class Estimate:
    """A limit of haproxy's `http_req_rate(1s)`: the requests of this period, and of those of the one before a part that
    shrinks until the period ends. It counts refused ones, too."""

    def __init__(self, most: int, start_us: int, period_us: int = 1_000_000) -> None:
        self._most = most
        self._start_us = start_us
        self._period_us = period_us
        self._count = self._before = 0

    def __call__(self, now: int) -> bool:
        passed = (now - self._start_us) // self._period_us
        if passed:
            self._before, self._count = self._count if passed == 1 else 0, 0
            self._start_us += passed * self._period_us
        self._count += 1
        left_us = self._start_us + self._period_us - now
        return self._before * left_us // self._period_us + self._count <= self._most


class RateBan:
    """After 50 requests in 5 s, all are refused until none has come for 30 s, as a stick table of haproxy does it."""

    def __init__(self, refusal: Fate, *, ban_us: int = 30_000_000) -> None:
        self.began_us: list[int] = []
        self.refused = 0
        self._refusal = refusal
        self._ban_us = ban_us
        self._is_on = False
        self._times: deque[int] = deque([-ban_us])

    def __call__(self, request: Request, now: int) -> Fate:
        if now - self._times[-1] >= self._ban_us:
            self._is_on = False
        self._times.append(now)
        while self._times[0] <= now - 5_000_000:
            self._times.popleft()
        if len(self._times) > 50 and not self._is_on:
            self._is_on = True
            self.began_us.append(now)
        self.refused += self._is_on
        return self._refusal if self._is_on else Fate()


def refused_at_random(share: float) -> Passes:
    random = Random(1)
    return lambda now: random.random() >= share


class LateLoop(Loop):
    """An endpoint on a busy machine: it notices each answer up to `late_us` after it has come."""

    late_us = 0

    def _answer(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        notice = super()._answer
        late_us = self.random.randrange(self.late_us + 1)
        self.at(self.now + late_us, lambda: notice(request_id, status, body, retry_after_us))


class SlotLoop(Loop):
    """A path that carries `slots` requests at once; the others, repeats too, wait for their turn."""

    slots = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._line: list[tuple[Request, Fate]] = []
        self._busy: set[int] = set()

    def _travel(self, request: Request, fate: Fate) -> None:
        self._line.append((request, fate))
        self._admit()

    def _answer(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        self._busy.discard(request_id)
        super()._answer(request_id, status, body, retry_after_us)
        self._admit()

    def _admit(self) -> None:
        over = set(abandoned(self))
        self._busy -= over
        self._line = [(request, fate) for request, fate in self._line if request.id not in over]
        while self._line and len(self._busy) < self.slots:
            request, fate = self._line.pop(0)
            self._busy.add(request.id)
            super()._travel(request, fate)
