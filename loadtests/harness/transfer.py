"""A checked transfer: which bytes were written, which have arrived, when, and whether they are the same."""

import asyncio
import time
from collections.abc import Iterator
from random import Random

from xxhash import xxh3_128

__all__ = ["CHUNK_BYTES", "Flow", "percentile"]

CHUNK_BYTES = 256 * 1024
_BLOCK_BYTES = 1024 * 1024
_STEP_BYTES = 4099  # a prime: no two chunks within 1 GiB are equal, so that swapped chunks are noticed


class Flow:
    """One direction of a checked transfer."""

    def __init__(self, size_bytes: int, seed: int) -> None:
        self.size_bytes = size_bytes
        self.written_bytes = 0
        self.received_bytes = 0
        self.began_s = 0.0  # monotonic; 0 before the start
        self.ended_s = 0.0
        self._block = Random(seed).randbytes(_BLOCK_BYTES + CHUNK_BYTES)
        self._sent = xxh3_128()
        self._received = xxh3_128()
        self._goals: list[tuple[int, asyncio.Future[None]]] = []
        self._hold_bytes = size_bytes
        self._hold_moved = asyncio.Event()
        self._quiet_since_s = 0.0
        self._longest_quiet_s = 0.0

    # For the writer

    def chunks(self) -> Iterator[memoryview]:
        """Yield everything to write, in chunks, and count each as written."""
        self.began_s = time.monotonic()
        block = memoryview(self._block)
        number = 0
        while self.written_bytes < self.size_bytes:
            size = min(CHUNK_BYTES, self.size_bytes - self.written_bytes)
            start = number * _STEP_BYTES % _BLOCK_BYTES
            chunk = block[start : start + size]
            self._sent.update(chunk)
            self.written_bytes += size
            yield chunk
            number += 1

    async def write_to(self, writer: asyncio.StreamWriter) -> None:
        """Write everything as fast as the stream and `hold` permit, then end the direction."""
        for chunk in self.chunks():
            writer.write(chunk)
            await writer.drain()
            while self._hold_bytes <= self.written_bytes < self.size_bytes:
                self._hold_moved.clear()
                await self._hold_moved.wait()
        writer.write_eof()

    # For the reader

    def took(self, data: bytes) -> bool:
        """Count and hash bytes that have arrived; return whether a waiter of reach() was woken."""
        self._received.update(data)
        self.received_bytes += len(data)
        self.ended_s = time.monotonic()
        self._longest_quiet_s = self.longest_quiet_s(self.ended_s)
        self._quiet_since_s = self.ended_s
        reached = False
        while self._goals and self.received_bytes >= self._goals[0][0]:
            goal = self._goals.pop(0)[1]
            if not goal.done():
                goal.set_result(None)
                reached = True
        return reached

    async def read_from(self, reader: asyncio.StreamReader) -> None:
        """Read until the end of the direction."""
        while data := await reader.read(CHUNK_BYTES):
            if self.took(data):
                # Let the waiter of reach() run first. Otherwise this loop might read the whole buffered rest before it.
                await asyncio.sleep(0)

    # For observers

    def hold(self, size_bytes: int) -> None:
        """Let `write_to` pause, from now on, when it has written `size_bytes` or up to a chunk more."""
        self._hold_bytes = size_bytes
        self._hold_moved.set()

    async def put_in_flight(self) -> int:
        """Wait until bytes are in flight, and let the writer continue for that; return the number of bytes in flight.

        Return 0 if everything has arrived.
        """
        while not self.in_flight_bytes and self.received_bytes < self.size_bytes:
            self.hold(max(self._hold_bytes, self.written_bytes + 1))
            await asyncio.sleep(0)  # let the writer run; there is no event to wait for
        return self.in_flight_bytes

    def begin_quiet(self, now_s: float) -> None:
        """Begin to measure the longest time without any byte that arrives."""
        self._quiet_since_s, self._longest_quiet_s = now_s, 0.0

    def longest_quiet_s(self, now_s: float) -> float:
        """Return the longest time without any byte that arrived, from `begin_quiet` until now."""
        return max(self._longest_quiet_s, now_s - self._quiet_since_s)

    @property
    def in_flight_bytes(self) -> int:
        """Number of bytes that were written and have not arrived."""
        return self.written_bytes - self.received_bytes

    @property
    def is_right(self) -> bool:
        """Whether exactly the bytes that were to be written have arrived."""
        return self.received_bytes == self.size_bytes and self._sent.digest() == self._received.digest()

    @property
    def digests(self) -> tuple[str, str]:
        """The XXH3-128 digests of the bytes written, and of those that arrived."""
        return self._sent.hexdigest(), self._received.hexdigest()

    @property
    def bytes_per_second(self) -> float:
        """The rate between the first byte written and the last one that arrived."""
        return self.received_bytes / max(self.ended_s - self.began_s, 1e-9)

    async def reach(self, size_bytes: int) -> None:
        """Wait until `size_bytes` have arrived."""
        if self.received_bytes < size_bytes:
            goal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._goals.append((size_bytes, goal))
            self._goals.sort(key=lambda pair: pair[0])
            await goal

    async def pass_on(self) -> float:
        """Let the writer go on, and wait until a byte has arrived that it writes from now on; return that moment.

        After a blow to a relay, an earlier byte proves nothing: it may still come from a socket of that relay. If all
        is written already, return the moment of the last byte.
        """
        later_bytes = min(self.written_bytes + 1, self.size_bytes)
        self.hold(later_bytes)
        await self.reach(later_bytes)
        return self.ended_s


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that `share` of all values do not exceed; NaN if there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
