"""Bytes to move and the watching of them: what was written, what has arrived, when, and whether it is the same."""

import asyncio
import time
from collections.abc import Iterator
from random import Random

from xxhash import xxh3_128

__all__ = ["Flow", "percentile"]

CHUNK_BYTES = 256 * 1024
_BLOCK_BYTES = 1024 * 1024
_STEP_BYTES = 4099  # a prime: no two chunks within 1 GiB are alike, so that one in another's place is noticed


class Flow:
    """One direction of one transfer."""

    def __init__(self, size_bytes: int, seed: int) -> None:
        self.size_bytes = size_bytes
        self.written_bytes = 0
        self.received_bytes = 0
        self.began_s = 0.0  # monotonic; 0: not yet
        self.ended_s = 0.0
        self._block = Random(seed).randbytes(_BLOCK_BYTES + CHUNK_BYTES)
        self._sent = xxh3_128()
        self._received = xxh3_128()
        self._goals: list[tuple[int, asyncio.Future[None]]] = []
        self._deliveries: list[asyncio.Future[float]] = []

    # the writer

    def chunks(self) -> Iterator[memoryview]:
        """Everything to write, in pieces."""
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
        """Write everything, as fast as it is taken, and end the direction."""
        for chunk in self.chunks():
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()

    # the reader

    def took(self, data: bytes) -> bool:
        """These bytes arrived; returns whether a goal was reached."""
        self._received.update(data)
        self.received_bytes += len(data)
        self.ended_s = time.monotonic()
        deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            if not delivery.done():
                delivery.set_result(self.ended_s)
        reached = False
        while self._goals and self.received_bytes >= self._goals[0][0]:
            goal = self._goals.pop(0)[1]
            if not goal.done():
                goal.set_result(None)
                reached = True
        return reached

    async def read_from(self, reader: asyncio.StreamReader) -> None:
        """Read to the end of the direction."""
        while data := await reader.read(CHUNK_BYTES):
            if self.took(data):
                # Whoever waits for the goal goes on first: the rest may be in the buffer and be read in this step.
                await asyncio.sleep(0)

    # who watches

    @property
    def in_flight_bytes(self) -> int:
        """Written, not arrived."""
        return self.written_bytes - self.received_bytes

    @property
    def is_right(self) -> bool:
        """Whether exactly what was to be written has arrived."""
        return self.received_bytes == self.size_bytes and self._sent.digest() == self._received.digest()

    @property
    def digests(self) -> tuple[str, str]:
        """Of what was written, and of what arrived (XXH3-128)."""
        return self._sent.hexdigest(), self._received.hexdigest()

    @property
    def bytes_per_second(self) -> float:
        """From the first byte written to the last one that arrived."""
        return self.received_bytes / max(self.ended_s - self.began_s, 1e-9)

    async def reach(self, size_bytes: int) -> None:
        """Return when so many bytes have arrived."""
        if self.received_bytes < size_bytes:
            goal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._goals.append((size_bytes, goal))
            self._goals.sort(key=lambda pair: pair[0])
            await goal

    async def delivery(self) -> float:
        """Return when bytes arrive, from now on; that moment."""
        if self.received_bytes >= self.size_bytes:
            return self.ended_s
        delivery: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._deliveries.append(delivery)
        return await delivery


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
