"""Datagrams over a tunnel connection: a length before each datagram keeps the boundaries.

    near = DatagramSide(deliver=lambda datagram: transport.sendto(datagram))
    splice(near, far)        # far: the TunnelSide of a connection to UDP_PREFIX + host
    near.offer(datagram)

A datagram that cannot leave at once waits in a queue. When the queue is full, the oldest datagram is dropped, as on any
network: a late datagram is worth little, so the sender is never made to wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from tunnel.streams.splice import Ended, Side

__all__ = ["DATAGRAM_BYTES_MAX", "UDP_PREFIX", "DatagramSide", "Deframer", "frame_datagram"]

UDP_PREFIX = "udp:"  # before the host of a target; no host begins with it, so older relays refuse the target
DATAGRAM_BYTES_MAX = 65_535  # the largest value of the length field; UDP over IPv4 carries 28 bytes less
_LENGTH_BYTES = 2
_QUEUE_DATAGRAMS = 256
_QUEUE_BYTES = 512 * 1024
_EARLY_BYTES = 64 * 1024  # of the datagrams that wait until there is another side


def frame_datagram(datagram: bytes) -> bytes:
    """Return the datagram with its length before it. Raise ValueError if it is too long."""
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise ValueError(f"a datagram has at most {DATAGRAM_BYTES_MAX} bytes, not {len(datagram)}")
    return len(datagram).to_bytes(_LENGTH_BYTES, "big") + datagram


class Deframer:
    """Turns the stream back into datagrams. It buffers less than one datagram."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes of the stream and yield the datagrams that are complete."""
        self._data += data
        start = 0
        while len(self._data) >= start + _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(self._data[start:begin], "big")
            if len(self._data) < end:
                break
            yield bytes(self._data[begin:end])
            start = end
        del self._data[:start]


class DatagramSide(Side):
    """The datagram side of a pair of spliced connections. `deliver` is called with each datagram from the tunnel.

    The pair ends when no datagram has been offered or delivered for `idle_seconds`.
    """

    def __init__(
        self, deliver: Callable[[bytes], None], ended: Ended | None = None, *, idle_seconds: float = 60.0
    ) -> None:
        super().__init__(ended=ended)
        self.dropped = 0
        self._deliver = deliver
        self._deframer = Deframer()
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._is_paused = True  # until the tunnel side is spliced to it
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._used_s = self._loop.time()
        self._timer = self._loop.call_later(idle_seconds, self._look)

    def offer(self, datagram: bytes) -> None:
        """Send a datagram through the tunnel, or queue it until there is room. A full queue drops the oldest ones."""
        if self._is_lost or len(datagram) > DATAGRAM_BYTES_MAX:
            self.dropped += 1
            return
        self._used_s = self._loop.time()
        if not self._is_paused and self._other is not None:
            self._other.write(frame_datagram(datagram))
            return
        self._queue.append(datagram)
        self._queue_bytes += len(datagram)
        bytes_max = _EARLY_BYTES if self._other is None else _QUEUE_BYTES
        while len(self._queue) > _QUEUE_DATAGRAMS or self._queue_bytes > bytes_max:
            self._queue_bytes -= len(self._queue.popleft())
            self.dropped += 1

    # Side: called by the other side

    @property
    def is_over(self) -> bool:
        return self._is_lost

    def write(self, data: bytes) -> bool:
        for datagram in self._deframer.feed(data):
            self._used_s = self._loop.time()
            self._deliver(datagram)
        return True

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        while self._queue and not self._is_paused and self._other is not None:
            datagram = self._queue.popleft()
            self._queue_bytes -= len(datagram)
            self._other.write(frame_datagram(datagram))

    def end_writing(self) -> None:
        self.close()  # a datagram socket has no half-close

    def close(self) -> None:
        self.is_eof = True
        self._end(None)

    def abort(self) -> None:
        self._is_cut = True
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._timer.cancel()
            self._queue.clear()
            self.connection_lost(error)

    def _look(self) -> None:
        rests_s = self._used_s + self._idle_seconds - self._loop.time()
        if rests_s <= 0:
            self.close()
        else:
            self._timer = self._loop.call_later(rests_s, self._look)
