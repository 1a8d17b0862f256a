"""Paths that limit requests: their rate, or how many are under way at once."""

from collections import deque
from collections.abc import Callable
from random import Random

from tests.exchange.loop import Fate, Loop, abandoned
from tunnel.exchange import Request

__all__ = ["Bucket", "Passes", "SlotLoop", "Window", "refused_at_random"]

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
    """A limit of the requests in the last second, which counts refused ones, too, as haproxy's http_req_rate does."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[int] = deque()

    def __call__(self, now: int) -> bool:
        while self._times and self._times[0] <= now - 1_000_000:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= self._most


def refused_at_random(share: float) -> Passes:
    random = Random(1)
    return lambda now: random.random() >= share


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
