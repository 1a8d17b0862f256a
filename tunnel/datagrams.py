"""Datagrams over a connection of their own: each with its length before it, so that their boundaries are kept.

    near = DatagramSide(deliver=lambda datagram: transport.sendto(datagram))
    splice(near, far)        # far: the TunnelSide of a connection to UDP_PREFIX + host
    near.offer(datagram)

A datagram that cannot leave at once waits in a queue; when that is full the oldest one is dropped, as on any network.
What a datagram carries is worth little later, so nobody is made to wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from tunnel.splice import Ended, Side

__all__ = ["DATAGRAM_BYTES_MAX", "UDP_PREFIX", "DatagramSide", "Deframer", "frame_datagram"]

UDP_PREFIX = "udp:"  # before the host of a target: no name and no address begins so, hence older relays refuse it
DATAGRAM_BYTES_MAX = 65_535  # what the length can say; UDP over IPv4 carries 28 bytes less
_LENGTH_BYTES = 2
_QUEUE_DATAGRAMS = 256
_QUEUE_BYTES = 512 * 1024


def frame_datagram(datagram: bytes) -> bytes:
    """As it travels. ValueError if it is too long."""
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise ValueError(f"a datagram has at most {DATAGRAM_BYTES_MAX} bytes, not {len(datagram)}")
    return len(datagram).to_bytes(_LENGTH_BYTES, "big") + datagram


class Deframer:
    """From the stream back to datagrams. Keeps less than one of them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The datagrams that are whole now."""
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
    """The side of a pair that speaks datagrams. `deliver` gets those that come through the tunnel.

    It ends, and the pair with it, when none passed for `idle_seconds`.
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
        self._is_paused = True  # until there is another side
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._used_s = self._loop.time()
        self._timer = self._loop.call_later(idle_seconds, self._look)

    def offer(self, datagram: bytes) -> None:
        """Send it through the tunnel, now or when there is room, if it is not too old by then."""
        if self._is_lost or len(datagram) > DATAGRAM_BYTES_MAX:
            self.dropped += 1
            return
        self._used_s = self._loop.time()
        if not self._is_paused and self._other is not None:
            self._other.write(frame_datagram(datagram))
            return
        self._queue.append(datagram)
        self._queue_bytes += len(datagram)
        while len(self._queue) > _QUEUE_DATAGRAMS or self._queue_bytes > _QUEUE_BYTES:
            self._queue_bytes -= len(self._queue.popleft())
            self.dropped += 1

    # what the other side asks for (Side)

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
        self.close()  # there is no half of a datagram socket

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
