"""Limits in bytes per second, without I/O: the notation of a rate, and a pace, which lets streams take turns."""

import re
from heapq import heappop, heappush
from typing import Generic, TypeVar

__all__ = ["RATE_LEAST", "Flow", "Pace", "parse_rate", "show_rate"]

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)/s")
_UNITS = {"B": 1, "KB": 1000, "KiB": 1 << 10, "MB": 1000**2, "MiB": 1 << 20, "GB": 1000**3, "GiB": 1 << 30}
_UNITS |= {"kbit": 125, "Mbit": 125_000, "Gbit": 125_000_000}  # in bytes, as the others
RATE_LEAST = 16 << 10
"""The lowest rate, in bytes per second. Below it one packet of the smallest size takes longer than 60 ms."""
_RATE_MOST = 1 << 40

# Bytes that the rate allowed in the last 30 ms but that were not sent may be sent later, and a stream that uses less
# than its share may begin 30 ms early. Together with one packet, a burst is at most the bytes of about 100 ms.
_CREDIT_NS = 30_000_000
_EARLY_NS = 30_000_000
_TURN_PART = 200  # a turn lasts 1/200 s, which is 5 ms
_TURN_BYTES_MAX = 256 << 10
_NS = 1_000_000_000  # nanoseconds in a second: at a rate of 1 GiB/s, microseconds would round a packet away

T = TypeVar("T")


def parse_rate(text: str) -> int:
    """Return the bytes per second of a rate such as 20 MiB/s or 100 Mbit/s. Raise ValueError for any other text."""
    found = _RATE.fullmatch(text.strip())
    if found is None or found[2] not in _UNITS:
        units = ", ".join(_UNITS)
        raise ValueError(f"{text!r} is not a rate: write it as in 20 MiB/s or 100 Mbit/s; the units are {units}")
    rate = int(float(found[1]) * _UNITS[found[2]])
    if not RATE_LEAST <= rate <= _RATE_MOST:
        raise ValueError(f"{text!r} is out of range: a rate is at least {show_rate(RATE_LEAST)} and at most 1024 GiB/s")
    return rate


def show_rate(rate: int) -> str:
    """Return a rate as text for people, in the largest binary unit that suits it."""
    for unit in ("GiB", "MiB", "KiB"):
        if rate >= _UNITS[unit]:
            return f"{rate / _UNITS[unit]:.4g} {unit}/s"
    return f"{rate} B/s"


class Flow(Generic[T]):
    """One stream at one pace. `owner` is the caller's object for the stream."""

    __slots__ = ("finish", "is_waiting", "owner", "start")

    def __init__(self, owner: T) -> None:
        self.owner = owner
        self.is_waiting = False
        self.start = 0  # the tags of start-time fair queueing, in bytes
        self.finish = 0


class Pace(Generic[T]):
    """A rate that several streams share. The caller lets a stream `join`; `poll` returns the stream whose turn has
    come; the caller must then `pay` for the bytes that pass.

    Streams wait in a start-time fair queue (Goyal et al., SIGCOMM 1996): each stream gets the same number of bytes, and
    one that uses less than its share goes before the others. The pace is a token bucket that remembers one time: when
    all bytes that were paid for would have passed at the rate. `now` is in microseconds.
    """

    __slots__ = ("_clear_ns", "_now_tag", "_order", "_queue", "_since_us", "_waited_us", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate  # bytes per second
        self._clear_ns = 0
        self._queue: list[tuple[int, int, Flow[T]]] = []
        self._now_tag = 0  # the start tag of the stream that was polled last
        self._order = 0  # breaks ties: the stream that joined first goes first
        self._since_us = 0  # the time from which on the queue has not been empty
        self._waited_us = 0

    @property
    def turn_bytes(self) -> int:
        """The bytes that a stream should send in one turn."""
        return min(self.rate // _TURN_PART, _TURN_BYTES_MAX)

    def waited_us(self, now: int) -> int:
        """Return the total time during which at least one stream has waited."""
        return self._waited_us + (max(0, now - self._since_us) if self._queue else 0)

    def set_rate(self, rate: int, now: int) -> None:
        """Change the rate. Bytes that were paid for in advance then pass at the new rate."""
        debt_ns = max(0, self._clear_ns - now * 1000)
        self._clear_ns = min(self._clear_ns, now * 1000) + debt_ns * self.rate // rate
        self.rate = rate

    def join(self, flow: Flow[T], now: int) -> None:
        """Put a stream into the queue. Has no effect if it is there already."""
        if flow.is_waiting:
            return
        if not self._queue:
            self._since_us = now
        flow.is_waiting = True
        flow.start = max(self._now_tag, flow.finish)
        self._order += 1
        heappush(self._queue, (flow.start, self._order, flow))

    def poll(self, now: int) -> Flow[T] | None:
        """Remove the stream whose turn it is from the queue and return it; the caller must `pay` for it. None: not
        yet."""
        if not self._queue or now < self._due_us():
            return None
        self._now_tag, _, flow = heappop(self._queue)
        flow.is_waiting = False
        if not self._queue:
            self._waited_us += max(0, now - self._since_us)
        return flow

    def pay(self, flow: Flow[T], size: int, now: int) -> None:
        """Count `size` bytes of a stream that `poll` has returned; they may pass now."""
        flow.finish = max(flow.start, flow.finish) + size
        begun_ns = max(self._clear_ns, now * 1000 - _CREDIT_NS)
        self._clear_ns = begun_ns + (size * _NS + self.rate - 1) // self.rate

    def next_timeout(self) -> int | None:
        """Return the time from which `poll` returns a stream, or None if none waits."""
        return self._due_us() if self._queue else None

    def _due_us(self) -> int:
        early_ns = _EARLY_NS if self._queue[0][0] <= self._now_tag else 0
        return -((early_ns - self._clear_ns) // 1000)
