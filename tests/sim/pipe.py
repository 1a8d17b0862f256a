"""One direction of a TCP connection: bytes arrive in order and after a delay, until the connection is cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim.clock import SECOND, Alarm, Clock

__all__ = ["Pipe"]


class Pipe:
    """Bytes that `write` takes reach `deliver`. `stalled_until` says until when nothing gets through."""

    def __init__(
        self,
        clock: Clock,
        latency_us: int,
        bytes_per_second: int,
        deliver: Callable[[bytes], None],
        stalled_until: Callable[[], int],
    ) -> None:
        self.written_bytes = 0
        self._clock = clock
        self._latency_us = latency_us
        self._bytes_per_second = bytes_per_second
        self._deliver = deliver
        self._stalled_until = stalled_until
        self._free_us = 0  # when everything that was written will have been sent
        self._under_way: deque[tuple[int, bytes]] = deque()
        self._alarm: Alarm | None = None

    def backlog_bytes(self) -> int:
        """Bytes that were written and not yet sent. While NOTSENT_BYTES (line.py) or more wait, no batch is written."""
        return max(0, self._free_us - self._clock.now_us) * self._bytes_per_second // SECOND

    def write(self, data: bytes) -> None:
        self.written_bytes += len(data)
        self._free_us = max(self._clock.now_us, self._free_us) + len(data) * SECOND // self._bytes_per_second
        self._under_way.append((self._free_us + self._latency_us, data))
        if self._alarm is None:
            self._arm()

    def flip(self, position: int, bit: int) -> bool:
        """Damage a bit in flight; False if nothing is in flight."""
        if not self._under_way:
            return False
        index = position % len(self._under_way)
        time_us, data = self._under_way[index]
        damaged = bytearray(data)
        damaged[position % len(damaged)] ^= 1 << bit
        self._under_way[index] = time_us, bytes(damaged)
        return True

    def cut(self) -> None:
        """Drop everything in flight."""
        self._under_way.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self) -> None:
        if self._under_way:
            self._alarm = self._clock.at(max(self._under_way[0][0], self._stalled_until()), self._arrive)

    def _arrive(self) -> None:
        self._alarm = None
        if self._stalled_until() <= self._clock.now_us:
            _, data = self._under_way.popleft()
            self._deliver(data)
        if self._alarm is None:
            self._arm()
