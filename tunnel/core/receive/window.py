"""The receiving half of a stream: puts packets in order, keeps what the reader has not taken, says what has come.

Sequence numbers here are unbounded. The window never forgets what it has taken in (4.2), unless told to discard.
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
PINNED_SHARE = 4  # and so is the first slice that is less than this part of its body, unless there is room for the body
JOIN_BYTES = 4 * 1024  # in-order slices below this are gathered into one chunk
CHUNK_BYTES = 64 * 1024  # which grows no further than this
UPDATE_SHARE = 4  # 4.12: a window update when this part of it has opened
RECENT_MAX = 64  # newest arrivals out of order that are remembered for SACK


class _Pin:
    """A body of which slices are kept: it stays in memory, whole, until the last of them is read."""

    __slots__ = ("body", "size", "slices")

    def __init__(self, body: object, size: int) -> None:
        self.body = body
        self.size = size
        self.slices = 0


class Arrival(enum.Enum):
    """What became of a sequenced packet."""

    IN_ORDER = "in order"
    OUT_OF_ORDER = "kept beyond a gap"
    DUPLICATE = "had come before"
    REFUSED = "beyond the window or the limits; not acknowledged"
    MISMATCH = "length or digest of the stream is wrong"


class ReceiveWindow:
    """Fed with sequenced packets after the peer's first. `read` gives the stream; `at_finish` and `at_close` say when
    the reader has come to an end."""

    def __init__(self, config: EndpointConfig, budget: WindowBudget, first_sequence: int) -> None:
        self._config = config
        self._budget = budget
        self.next_sequence = first_sequence
        self.received_offset = 0  # bytes in order
        self.delivered_offset = 0  # bytes read
        self.buffered_bytes = 0  # in order and not read
        self.pinned_bytes = 0  # what the kept slices pin beyond their own size
        self.finished = False  # FINISH or CLOSE is in order: no byte follows
        self.closed = False  # CLOSE is in order
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
        """What to announce: room beyond the bytes in order. Who discards has always room."""
        if self.discarding:
            return self.size_bytes
        return max(0, self.right_edge - self.received_offset)

    @property
    def gaps(self) -> bool:
        """Something is missing before what has come."""
        return bool(self._ahead)

    @property
    def readable(self) -> bool:
        """`read` would give bytes."""
        return bool(self._chunks)

    @property
    def at_end(self) -> bool:
        """The reader has taken every byte, and no more will come."""
        return self.finished and not self._chunks

    def ranges(self) -> list[tuple[int, int]]:
        """What lies beyond the first gap, newest first (4.4)."""
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
        """Take a sequenced packet in; `end` is the decoded payload of FINISH and CLOSE."""
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
            payload = b""  # what it says was decoded; only the stream is kept
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
        while (item := self._ahead.pop(self.next_sequence, None)) is not None:
            packet_type, payload, pin, end = item
            self._ahead_bytes -= len(payload)
            if not self._append(packet_type, payload, pin, end):
                return False
        self._ahead_ranges.remove_up_to(self.next_sequence - 1)
        return True

    def _append(self, packet_type: int, payload: Buffer, pin: _Pin | None, end: End | None) -> bool:
        """The next packet in order; False when the end of the stream does not match what came before it."""
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
            return  # nobody honest sends it (1.5); an empty chunk would stand before the end of the stream
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
        """A buffer that may be kept: a copy, or the slice itself with the body that it pins accounted for."""
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
        """Bytes of a slice were taken; with its `last` ones the slice is gone."""
        self.pinned_bytes += taken
        if last:
            pin.slices -= 1
            if not pin.slices:
                self.pinned_bytes -= pin.size
                if pin is self._last_pin:
                    self._last_pin = None

    def _skip_to(self, sequence: int, packet_type: int) -> Arrival:
        """Who has closed keeps nothing and misses nothing (5.6)."""
        self.next_sequence = sequence + 1
        if packet_type == PacketType.CLOSE:
            self.closed = self.finished = True
        return Arrival.IN_ORDER

    # the reader's side

    def read(self, size_max: int) -> Buffer:
        """The next bytes of the stream, at most `size_max`; b"" when there are none now."""
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
        """Move the right edge as far as the reader allows; whether the peer should be told now (4.12)."""
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
        """As much as the window came so fast that it may be what limits the sender, however fast the reader is."""
        self._used_up = True

    def admit(self, early_bytes: int) -> None:
        """Take at least so much: the initiator need not know our window before it sends (3.6)."""
        self.right_edge = self._announced_edge = max(self.right_edge, early_bytes)

    def announced(self) -> int:
        """The window that leaves in an ACK now; remembered, for the next update is measured from it."""
        self._announced_edge = self.right_edge
        return self.window_bytes

    def discard(self) -> None:
        """Junk what was kept and keep nothing from now on (5.2)."""
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
