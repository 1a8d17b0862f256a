"""The receive window: it puts packets in order, keeps bytes until they are read, and reports which packets came.

Sequence numbers here are unbounded. The window never drops what it has accepted (4.2), unless `discard` is called.
"""

import enum
from collections import deque
from collections.abc import Sized
from typing import cast

from xxhash import xxh3_128

from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.ranges import RangeSet
from tunnel.wire import RANGES_MAX, Buffer, End, PacketType

__all__ = ["Arrival", "ReceiveWindow"]

COPY_BYTES = 64 * 1024  # slices below this are copied out of their body, so that they do not pin it
PINNED_SHARE = 4  # a slice below 1/4 of its body is copied, too, if the pinned bytes would exceed half of the window
JOIN_BYTES = 4 * 1024  # in-order slices below this are gathered into one chunk
CHUNK_BYTES = 64 * 1024  # largest size of such a chunk
UPDATE_SHARE = 4  # 4.12: an ACK leaves when a quarter of the window, or twice the largest packet if less, became free
RECENT_MAX = 64  # number of out-of-order arrivals that are remembered for SACK, newest first


class _Pin:
    """A body of which slices are kept. The whole body stays in memory until its last slice is read."""

    __slots__ = ("body", "size", "slices")

    def __init__(self, body: object, size: int) -> None:
        self.body = body
        self.size = size
        self.slices = 0


class Arrival(enum.Enum):
    """The result of inserting a sequenced packet."""

    IN_ORDER = "in order"
    OUT_OF_ORDER = "kept beyond a gap"
    DUPLICATE = "had come before"
    REFUSED = "beyond the window or the limits; not acknowledged"
    MISMATCH = "length or digest of the stream is wrong"


class ReceiveWindow:
    """The receive window of one stream.

    The caller inserts every sequenced packet except CONNECT. `read` returns the stream, and `at_end` tells
    when the reader has reached its end. One thing because each packet that comes, and each read, changes the gaps, the
    window and the memory that is charged together.
    """

    def __init__(self, config: EndpointConfig, budget: WindowBudget, first_sequence: int) -> None:
        self._config = config
        self._budget = budget
        self.next_sequence = first_sequence
        self.received_offset = 0  # bytes in order
        self.delivered_offset = 0  # bytes read
        self.buffered_bytes = 0  # bytes in order that are not read
        self.pinned_bytes = 0  # bytes that the kept slices pin beyond their own size
        self.finished = False  # FINISH or CLOSE has come in order: no byte follows
        self.closed = False  # CLOSE has come in order, or was dropped by `discard`
        self.discarding = False
        granted = budget.grant(config.window_bytes_start - config.window_bytes_min)
        self._granted = granted
        self.size_bytes = config.window_bytes_min + granted
        self.right_edge = self._announced_edge = self.size_bytes
        self._used_up = False  # the sender has come near the right edge, or is fast, since the window last grew
        self._chunks: deque[tuple[Buffer, _Pin | None]] = deque()
        self._last_pin: _Pin | None = None
        self._ahead: dict[int, tuple[int, Buffer, _Pin | None, End | None]] = {}
        self._ahead_bytes = 0
        self._ahead_ranges = RangeSet()
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._digest = xxh3_128()

    # getters

    @property
    def window_bytes(self) -> int:
        """The window to announce: the room beyond the bytes in order. A discarding receiver always has room."""
        if self.discarding:
            return self.size_bytes
        return max(0, self.right_edge - self.received_offset)

    @property
    def gaps(self) -> bool:
        """Whether a packet is missing before one that has come."""
        return bool(self._ahead)

    @property
    def readable(self) -> bool:
        """Whether `read` would return bytes."""
        return bool(self._chunks)

    @property
    def at_end(self) -> bool:
        """Whether the reader has taken every byte and no more will come."""
        return self.finished and not self._chunks

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges beyond the first gap, newest first (2.4)."""
        if not self._ahead:
            return []
        found: dict[int, tuple[int, int]] = {}
        for sequence in self._recent:
            bounds = self._ahead_ranges.range_of(sequence)
            if bounds is not None and bounds[0] not in found:
                found[bounds[0]] = bounds
                if len(found) == RANGES_MAX:
                    break
        return list(found.values())

    # the network's side

    def insert(self, sequence: int, packet_type: int, payload: Buffer, end: End | None) -> Arrival:
        """Insert a sequenced packet. `end` is the decoded payload of FINISH and CLOSE."""
        if sequence < self.next_sequence:
            return Arrival.DUPLICATE
        if self.discarding:
            return self._skip_to(sequence, packet_type)
        if sequence == self.next_sequence:
            if self.received_offset + len(payload) > self.right_edge and packet_type == PacketType.DATA:
                return Arrival.REFUSED
            if not self._append(packet_type, payload, None, end):
                return Arrival.MISMATCH
            if self._ahead and not self._take_from_ahead():
                return Arrival.MISMATCH
            if (self.right_edge - self.received_offset) * 4 < self.size_bytes:
                self._used_up = True
            return Arrival.IN_ORDER
        if sequence in self._ahead:
            return Arrival.DUPLICATE
        return self._keep_ahead(sequence, packet_type, payload, end)

    def _keep_ahead(self, sequence: int, packet_type: int, payload: Buffer, end: End | None) -> Arrival:
        if packet_type != PacketType.DATA:
            payload = b""  # the payload was decoded already; only bytes of the stream are kept
        size = len(payload)
        limit = self._config.out_of_order_packets_max
        if len(self._ahead) >= limit or sequence - self.next_sequence > 4 * limit:
            return Arrival.REFUSED
        if self.received_offset + self._ahead_bytes + size > self.right_edge:
            return Arrival.REFUSED
        self._ahead[sequence] = (packet_type, *self._own(payload), end)
        self._ahead_bytes += size
        self._ahead_ranges.add(sequence, sequence)
        self._recent.appendleft(sequence)
        return Arrival.OUT_OF_ORDER

    def _take_from_ahead(self) -> bool:
        matches = True
        while matches and (item := self._ahead.pop(self.next_sequence, None)) is not None:
            packet_type, payload, pin, end = item
            self._ahead_bytes -= len(payload)
            matches = self._append(packet_type, payload, pin, end)
        self._ahead_ranges.remove_up_to(self.next_sequence - 1)
        return matches

    def _append(self, packet_type: int, payload: Buffer, pin: _Pin | None, end: End | None) -> bool:
        """Append the next packet in order. Return False if length or digest of the stream do not match.

        Bytes after the end of the stream count as a mismatch too.
        """
        if end is not None:
            if end.length != self.received_offset or end.digest != self._digest.digest():
                return False
            self.finished = True
            self.closed = self.closed or packet_type == PacketType.CLOSE
        elif packet_type == PacketType.DATA:
            if self.finished:
                return False  # bytes after the end
            self._store(payload, pin)
        self.next_sequence += 1
        return True

    def _store(self, payload: Buffer, pin: _Pin | None) -> None:
        size = len(payload)
        if not size:
            return  # a conforming peer never sends this (1.5); an empty chunk would hide the end of the stream
        self._digest.update(payload)
        self.received_offset += size
        self.buffered_bytes += size
        chunks = self._chunks
        if size >= JOIN_BYTES:
            chunks.append((payload, pin) if pin is not None else self._own(payload))
            return
        if chunks:
            last = chunks[-1][0]
            if isinstance(last, bytearray) and len(last) + size <= CHUNK_BYTES:
                last += payload
                return
        chunks.append((bytearray(payload), None))

    def _own(self, payload: Buffer) -> tuple[Buffer, _Pin | None]:
        """Return a buffer that may be kept: a copy, or the slice itself and the account of the body that it pins."""
        if not isinstance(payload, memoryview):
            return payload, None
        size = len(payload)
        if size < COPY_BYTES:
            return bytes(payload), None
        pin = self._last_pin
        if pin is None or pin.body is not payload.obj:
            body_bytes = len(cast(Sized, payload.obj))
            if size * PINNED_SHARE < body_bytes and (self.pinned_bytes + body_bytes) * 2 > self.size_bytes:
                return bytes(payload), None
            self._last_pin = pin = _Pin(payload.obj, body_bytes)
            self.pinned_bytes += body_bytes
        pin.slices += 1
        self.pinned_bytes -= size
        return payload, pin

    def _unpin(self, pin: _Pin, taken: int, *, last: bool) -> None:
        """Account for bytes that were read from a slice. `last` means that the whole slice has been read."""
        self.pinned_bytes += taken
        if last:
            pin.slices -= 1
            if not pin.slices:
                self.pinned_bytes -= pin.size
                if pin is self._last_pin:
                    self._last_pin = None

    def _skip_to(self, sequence: int, packet_type: int) -> Arrival:
        """Skip to the packet after this one: a receiver that has closed keeps nothing and waits for no gap (5.6)."""
        self.next_sequence = sequence + 1
        if packet_type == PacketType.CLOSE:
            self.closed = self.finished = True
        return Arrival.IN_ORDER

    # the reader's side

    def read(self, size_max: int) -> Buffer:
        """Return the next bytes of the stream, at most `size_max`; b"" if there are none now."""
        if not self._chunks or size_max <= 0:
            return b""
        head, pin = self._chunks[0]
        data: Buffer
        if len(head) <= size_max:
            self._chunks.popleft()
            data = head
        elif isinstance(head, bytearray):
            data = bytes(head[:size_max])
            del head[:size_max]
        else:
            view = memoryview(head)
            self._chunks[0] = (view[size_max:], pin)
            data = view[:size_max]
        if pin is not None:
            self._unpin(pin, len(data), last=data is head)
        self.buffered_bytes -= len(data)
        self.delivered_offset += len(data)
        return data

    def advance(self) -> bool:
        """Move the right edge as far as the bytes read allow. Return whether a window update is due (4.12)."""
        if self._used_up:
            self._grow()
        edge = self.delivered_offset + self.size_bytes - self.pinned_bytes
        if edge <= self.right_edge:
            return False
        self.right_edge = edge
        step = min(self.size_bytes // UPDATE_SHARE, 2 * self._config.packet_bytes_max)
        return edge - self._announced_edge >= step

    def _grow(self) -> None:
        """Double the window when the sender has used most of it up and the reader keeps pace."""
        if self.size_bytes >= self._config.window_bytes_max or self.discarding:
            return
        if self._used_up and self.buffered_bytes * 4 < self.size_bytes:
            self._used_up = False
            granted = self._budget.grant(min(self.size_bytes, self._config.window_bytes_max - self.size_bytes))
            self._granted += granted
            self.size_bytes += granted

    def use_up(self) -> None:
        """Mark the window as used up: a whole window came so fast that it may be what limits the sender."""
        self._used_up = True

    def admit(self, early_bytes: int) -> None:
        """Accept at least `early_bytes`, which the initiator may send before it knows the window (3.6)."""
        self.right_edge = self._announced_edge = max(self.right_edge, early_bytes)

    def announce(self) -> int:
        """Return the window for an ACK that leaves now, and remember its edge: the next update is measured from it."""
        self._announced_edge = self.right_edge
        return self.window_bytes

    def discard(self) -> None:
        """Drop everything kept, and keep nothing from now on (5.2)."""
        self.discarding = True
        self._chunks.clear()
        self._last_pin = None
        self.buffered_bytes = self.pinned_bytes = 0
        if self._ahead:
            self.closed = self.closed or any(item[0] == PacketType.CLOSE for item in self._ahead.values())
            self.next_sequence = max(self._ahead) + 1
        self._ahead.clear()
        self._ahead_bytes = 0
        self._ahead_ranges = RangeSet()
        self.release()

    def release(self) -> None:
        """Give the granted bytes back to the budget."""
        self._budget.release(self._granted)
        self._granted = 0
