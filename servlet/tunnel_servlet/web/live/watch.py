"""Throughput, connections, refusals, loss and round trips, while somebody looks: samples of what the switch counts
anyway. Nothing runs, and nothing but the last points is kept, while nobody does."""

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import median

import msgspec

from tunnel.system.clock import now_us
from tunnel_servlet.switch.inline_id import is_own_name
from tunnel_servlet.switch.model import Route, ServedAttachment
from tunnel_servlet.switch.operating.operator import Operator
from tunnel_servlet.switch.operating.rows import bytes_passed
from tunnel_servlet.switch.stats import SwitchStats, Undelivered
from tunnel_servlet.switch.switch import Switch

__all__ = ["EVERY_S", "Point", "Watch"]

EVERY_S = 2.0
_FRESH_US = 1_900_000  # those who look at the same time share a sample
_POINTS = 300  # 10 minutes
_SLICE = 500  # connections in one turn of the event loop: 1 ms
_SECOND = 1_000_000
_TAIL = 20  # the slowest of 20 round trips, the 95th percentile
# The packets that users miss: a copy waits instead of the others, or they were not needed any more.
_LOST = tuple(why.value for why in Undelivered if why not in (Undelivered.REPLACED, Undelivered.ENDED))


class Point(msgspec.Struct, frozen=True):
    """What happened between two samples. Rates are by second."""

    at_s: float  # on the clock of the relay
    bytes_in: float  # of packets from endpoints
    bytes_out: float  # of packets to endpoints
    connections: int
    opened: float
    refused: float
    lost: float  # packets that the relay dropped
    taken_back: float  # packets that left, were not confirmed, and wait for another way
    round_trip_ms: float | None  # the median of the links on which receipts came, of each the shortest
    slow_round_trip_ms: float | None  # the 95th percentile


class Watch:
    """Takes samples for all who look. `rates` holds the bytes by second of each connection, by number: up and down."""

    def __init__(self, switch: Switch, clock: Callable[[], int] = now_us) -> None:
        self.points: deque[Point] = deque(maxlen=_POINTS)
        self.rates: dict[int, tuple[float, float]] = {}
        self._operator: Operator = switch.operator
        self._switch = switch
        self._clock = clock
        self._lookers = 0
        self._lock = asyncio.Lock()
        self._at_us = 0
        self._before: SwitchStats | None = None
        self._passed: dict[int, tuple[int, int]] = {}

    @property
    def lookers(self) -> int:
        """How many look at present."""
        return self._lookers

    def join(self) -> None:
        """Note that somebody begins to look."""
        self._lookers += 1

    def leave(self) -> None:
        """Note that somebody looks no more. When nobody does, forget all but the points."""
        self._lookers -= 1
        if not self._lookers:
            self._passed, self.rates, self._before = {}, {}, None

    async def look(self) -> None:
        """Take a sample, unless there is a fresh one."""
        async with self._lock:
            now = self._clock()
            if self._before is None or now - self._at_us >= _FRESH_US:
                await self._take(now)

    async def _take(self, now: int) -> None:
        stats, trips = self._switch.stats(), self._round_trips()
        if self._before is not None and now > self._at_us:
            self.points.append(self._point(self._before, stats, trips, now))
        passed: dict[int, tuple[int, int]] = {}
        rates: dict[int, tuple[float, float]] = {}
        routes = self._operator.connections()
        for first in range(0, len(routes), _SLICE):
            if first:
                await asyncio.sleep(0)
            for route in routes[first : first + _SLICE]:
                number = route.number
                passed[number] = found = bytes_passed(route)
                rates[number] = self._rate(route, found, now)
        self._passed, self.rates, self._before, self._at_us = passed, rates, stats, now

    def _rate(self, route: Route, found: tuple[int, int], now: int) -> tuple[float, float]:
        """Return the rates since the last sample, or since the connection began if it is new in this one."""
        up, down = self._passed.get(route.number, (0, 0))
        since_us = self._at_us if route.number in self._passed else route.opened_us
        seconds = max(now - since_us, 1) / _SECOND
        return max(0, found[0] - up) / seconds, max(0, found[1] - down) / seconds

    def _round_trips(self) -> list[int]:
        """Return the shortest round trip of each link since the last sample, ascending."""
        links = (link for one in self._remote() for link in one.links.values())
        return sorted(trip_us for link in links if (trip_us := link.take_round_trip()))

    def _remote(self) -> list[ServedAttachment]:
        """Return the attachments of endpoints in other processes."""
        return [one for one in self._operator.attachments() if not is_own_name(one.account.user)]

    def _point(self, before: SwitchStats, stats: SwitchStats, trips: list[int], now: int) -> Point:
        old, new = before.counters, stats.counters
        seconds = (now - self._at_us) / _SECOND
        lost = sum(getattr(new, name) - getattr(old, name) for name in _LOST)
        opened = stats.routes + new.routes_released - before.routes - old.routes_released
        return Point(
            at_s=now / _SECOND,
            bytes_in=(new.bytes_received - old.bytes_received) / seconds,
            bytes_out=(new.bytes_sent - old.bytes_sent) / seconds,
            connections=stats.routes_open,
            opened=opened / seconds,
            refused=(new.connects_refused - old.connects_refused) / seconds,
            lost=lost / seconds,
            taken_back=(new.packets_taken_back - old.packets_taken_back) / seconds,
            round_trip_ms=median(trips) / 1000 if trips else None,
            slow_round_trip_ms=trips[len(trips) - 1 - len(trips) // _TAIL] / 1000 if trips else None,
        )
