"""The send window: it cuts written bytes into numbered segments and remembers which of them the peer has.

Sequence numbers here are unbounded; the wire carries them mod 2**32. The window knows no time: `sender.py`, with
`loss.py`, decides when a segment counts as lost, and when it is sent.
"""

import enum
from collections import deque
from heapq import heappop, heappush

from xxhash import xxh3_128

from tunnel.core.ranges import RangeSet
from tunnel.wire import Buffer, End, PacketType, encode_end, unwrap, wrap

__all__ = ["NO_EDGE", "Segment", "SegmentState", "SendWindow"]

NO_EDGE = 1 << 62  # bytes: the edge before any relay has announced one
JOIN_BYTES = 64 * 1024  # chunks below this are joined into one segment; larger ones are passed on without a copy
# RFC 9293 3.8.6.2.1 (silly windows): while bytes are in flight, new ones leave only if the peer's window and the edge
# have room for this many, or for all that wait.
TRICKLE_BYTES = 1024


class SegmentState(enum.IntEnum):
    """The state of a segment's latest attempt."""

    CARRIED = 0
    """In a batch that has no receipt yet."""
    RECEIPTED = 1
    """Queued at the relay."""
    LOST = 2
    """To be sent again."""
    ACKNOWLEDGED = 3
    """In the peer's buffer."""


class Segment:
    """One sequenced packet. `offset` and `size` count bytes of the stream: FINISH and CLOSE have size 0."""

    __slots__ = (
        "attempt",
        "cause",
        "charged",
        "earlier",
        "offset",
        "order",
        "payload",
        "receipt_us",
        "sequence",
        "size",
        "state",
        "type",
    )

    def __init__(self, sequence: int, packet_type: int, payload: Buffer, offset: int, size: int) -> None:
        self.sequence = sequence
        self.type = packet_type
        self.payload = payload
        self.offset = offset
        self.size = size
        self.attempt = 0
        self.state = SegmentState.CARRIED
        self.cause = ""  # why an attempt was last declared lost, for statistics
        self.charged = False  # counts against the relay's edge
        self.order = -1  # place in the order of receipts (loss.py)
        self.receipt_us = -1  # when the latest attempt was receipted; -1: not yet
        self.earlier: dict[int, int] | None = None  # attempt -> receipt time, for earlier attempts

    def next_attempt(self) -> None:
        """Start the next attempt: the segment is carried once more."""
        if self.receipt_us >= 0:
            self.note_earlier(self.attempt, self.receipt_us)
            self.receipt_us = -1
        self.attempt += 1
        self.state = SegmentState.CARRIED

    def note_earlier(self, attempt: int, receipt_us: int) -> None:
        """Record the receipt of an attempt that is not the latest one."""
        if self.earlier is None:
            self.earlier = {}
        self.earlier[attempt] = receipt_us

    def void_receipts(self) -> None:
        """Forget all receipts: the route is lost, and the time without it must not count as a round trip (4.5)."""
        self.receipt_us = -1
        self.earlier = None

    def receipt_of(self, attempt: int) -> int:
        """Return when that attempt was queued at the relay; -1 if it has no receipt."""
        if attempt == self.attempt:
            return self.receipt_us
        return self.earlier.get(attempt, -1) if self.earlier else -1


class SendWindow:
    """Written bytes, numbered segments, and the two limits of bytes in flight: the peer's window and the relay's edge.

    `take` returns the segment that may leave next; lost segments go first, oldest first. One thing because all its
    numbers are sums over the same segments: each segment that is sent, lost or acknowledged changes several of them.
    """

    def __init__(self, first_sequence: int, buffer_bytes_max: int, peer_edge: int) -> None:
        self.buffer_bytes_max = buffer_bytes_max
        self.oldest = first_sequence  # the first number that is not acknowledged cumulatively
        self.next_sequence = first_sequence
        # The first number that was never sent. An inserted packet gets its number before it is sent, so this may be
        # below next_sequence.
        self.unsent_sequence = first_sequence
        self.outstanding: dict[int, Segment] = {}
        self.peer_edge = peer_edge  # stream offset up to which the peer has room (4.1)
        self.written_bytes = 0
        self.sent_offset = 0
        self.acknowledged_offset = 0
        self.edge_sequence = first_sequence - 1  # S of 2.10
        self.edge_bytes = NO_EDGE  # B of 2.10
        self.edge_used = 0  # the load of 4.11, in bytes
        self.lost_bytes = 0  # bytes to be sent again
        self.ends_held = False  # FINISH and CLOSE must wait: before ACCEPTED only DATA may leave (3.6)
        self.close_sequence = NO_EDGE  # number of our CLOSE, once it has one
        self.close_received: int | None = None  # last number received in order when close() was called (2.5)
        self._pending: deque[Buffer] = deque()
        self._ends: deque[int] = deque()
        self._lost: list[int] = []
        self._sacked = RangeSet()
        self._digest = xxh3_128()

    # getters

    @property
    def pending_bytes(self) -> int:
        """The number of bytes written and never sent."""
        return self.written_bytes - self.sent_offset

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes to be sent for the first time or again."""
        return self.written_bytes - self.sent_offset + self.lost_bytes

    @property
    def unacknowledged_bytes(self) -> int:
        """The number of bytes written and not acknowledged cumulatively."""
        return self.written_bytes - self.acknowledged_offset

    @property
    def room(self) -> int:
        """The number of bytes that `write` would take now."""
        return max(0, self.buffer_bytes_max - self.unacknowledged_bytes)

    @property
    def idle(self) -> bool:
        """Whether nothing is unacknowledged and nothing waits."""
        return not self.outstanding and not self._ends and self.pending_bytes == 0

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing waits to be sent, for the first time or again.

        It may be False although nothing waits, since `_lost` may hold entries that were acknowledged meanwhile.
        """
        return self.written_bytes == self.sent_offset and not self._lost and not self._ends

    @property
    def is_blocked(self) -> bool:
        """Whether the peer's window must be probed: bytes wait, nothing is in flight, and it has no room (4.12)."""
        if self.outstanding or self.peer_edge > self.sent_offset:
            return False
        return self.written_bytes > self.sent_offset

    def find(self, wire_sequence: int) -> Segment | None:
        """Return the outstanding segment with that number on the wire, or None."""
        return self.outstanding.get(unwrap(wire_sequence, self.oldest))

    def lost_size(self) -> int:
        """Return the payload size of the lost segment that `take` would return next; 0 if none is lost."""
        return len(self.outstanding[self._lost[0]].payload) if self._lost and self._prune_lost() else 0

    def digest(self) -> bytes:
        """Return the XXH3-128 digest of all bytes that have been put into segments so far."""
        return self._digest.digest()

    # the application's side

    def write(self, data: Buffer) -> int:
        """Take as many bytes as there is room for. Return how many. A `bytes` object is kept without a copy."""
        size = len(data)
        room = self.buffer_bytes_max - self.written_bytes + self.acknowledged_offset
        if size > room:
            size = room
        if size <= 0:
            return 0
        if not isinstance(data, bytes):
            data = bytes(data[:size])
        elif size < len(data):
            data = memoryview(data)[:size]
        self._pending.append(data)
        self.written_bytes += size
        return size

    def end(self, packet_type: int) -> None:
        """Queue FINISH or CLOSE after everything written. The caller must write nothing afterwards."""
        self._ends.append(packet_type)

    def insert(self, packet_type: int, payload: bytes) -> None:
        """Number a packet without bytes of the stream (ACCEPTED, OPTION). It leaves before bytes that have none yet."""
        segment = self._number(packet_type, payload, 0)
        segment.attempt = -1
        self.lose(segment, "")

    # transmission

    def sendable(self) -> bool:
        """Return whether `take` would return a segment for a large enough size."""
        if self._lost and self._prune_lost():
            return self._may_resend(self.outstanding[self._lost[0]])
        if self.written_bytes > self.sent_offset:
            return self.peer_edge > self.sent_offset and self._cut_size(1 << 30) > 0
        return bool(self._ends) and not self.ends_held

    def take(self, size_max: int) -> Segment | None:
        """Return the next segment to carry: a whole lost one, else up to `size_max` new bytes, else FINISH or CLOSE.

        The segment is then in flight until it is acknowledged or lost. Return None if nothing may leave.
        """
        if self._lost and self._prune_lost():
            segment = self.outstanding[self._lost[0]]
            if not self._may_resend(segment):
                return None
            heappop(self._lost)
            self.lost_bytes -= segment.size
            segment.next_attempt()
        elif self.written_bytes > self.sent_offset:
            size = self._cut_size(size_max)
            if size <= 0:
                return None
            segment = self._number(PacketType.DATA, self._cut(size), size)
        elif self._ends and not self.ends_held:
            segment = self._number_end(self._ends.popleft())
        else:
            return None
        if not segment.attempt:
            self.unsent_sequence = segment.sequence + 1
        if segment.size:
            segment.charged = True
            self.edge_used += segment.size
        return segment

    def lose(self, segment: Segment, cause: str) -> None:
        """Declare the latest attempt lost, so that `take` returns the segment again.

        It has no effect on a segment that is acknowledged or lost already.
        """
        if segment.state >= SegmentState.LOST:
            return
        segment.state = SegmentState.LOST
        segment.cause = cause
        self.lost_bytes += segment.size
        self._uncharge(segment)
        heappush(self._lost, segment.sequence)

    # feedback

    def acknowledge(self, cumulative: int, ranges: list[tuple[int, int]]) -> list[Segment] | None:
        """Apply an acknowledgement. Return the segments that it acknowledges for the first time.

        Return None if it names packets that were never sent, or an invalid range (4.4); then nothing was changed.
        """
        if cumulative >= self.unsent_sequence:
            return None
        for first, last in ranges:
            if not cumulative < first <= last < self.unsent_sequence:
                return None
        newly: list[Segment] = []
        while self.oldest <= cumulative:
            segment = self.outstanding.pop(self.oldest)
            self.oldest += 1
            self.acknowledged_offset = segment.offset + segment.size
            if segment.state is not SegmentState.ACKNOWLEDGED:
                self._settle(segment)
                newly.append(segment)
        if ranges:
            self._merge(ranges, newly)
        if self._sacked:
            self._sacked.remove_up_to(self.oldest - 1)
        return newly

    def acknowledge_all(self) -> None:
        """Treat all numbered packets as acknowledged, including those that were never sent: the peer has ended."""
        self.unsent_sequence = self.next_sequence
        self.acknowledge(self.next_sequence - 1, [])

    def _merge(self, ranges: list[tuple[int, int]], newly: list[Segment]) -> None:
        for first, last in ranges:
            if last < self.oldest:
                continue  # the range is covered by a cumulative acknowledgement that came earlier
            for new_first, new_last in self._sacked.add(max(first, self.oldest), last):
                for sequence in range(new_first, new_last + 1):
                    segment = self.outstanding[sequence]
                    self._settle(segment)
                    newly.append(segment)

    def _settle(self, segment: Segment) -> None:
        if segment.state is SegmentState.LOST:
            self.lost_bytes -= segment.size
        segment.state = SegmentState.ACKNOWLEDGED
        segment.payload = b""
        self._uncharge(segment)

    def open_peer_window(self, cumulative: int, window_bytes: int) -> bool:
        """Apply the window of an ACK. Return whether the peer's edge moved to the right; it never moves left (4.1)."""
        if cumulative != self.oldest - 1:
            return False  # the ACK is older than one that came before, and so is its window
        edge = self.acknowledged_offset + window_bytes
        if edge <= self.peer_edge:
            return False
        self.peer_edge = edge
        return True

    def announce_edge(self, sequence: int, room_bytes: int) -> bool:
        """Apply an edge that the relay has announced. Return False if 2.10 requires that it is ignored."""
        if sequence < self.edge_sequence or sequence >= self.unsent_sequence:
            return False
        for passed in range(max(self.edge_sequence + 1, self.oldest), sequence + 1):
            self._uncharge(self.outstanding[passed])
        self.edge_sequence = sequence
        self.edge_bytes = room_bytes
        return True

    def reset_edge(self, room_bytes: int) -> None:
        """Restart the edge for a new route: the initial edge counts from the cumulative acknowledgement (6.6, 7.12)."""
        self.edge_sequence = self.oldest - 1
        self.edge_bytes = room_bytes

    def junk(self) -> int:
        """Drop everything unsent or unacknowledged (5.3, 5.4). Return how many bytes of the stream were dropped."""
        junked = self.unacknowledged_bytes
        self.written_bytes = self.sent_offset = self.acknowledged_offset
        self._pending.clear()
        self._ends.clear()
        self._lost.clear()
        self.outstanding.clear()
        self._sacked = RangeSet()
        self.oldest = self.unsent_sequence = self.next_sequence
        self.edge_used = self.lost_bytes = 0
        return junked

    # helpers

    def _prune_lost(self) -> bool:
        """Return whether a segment must be sent again. Entries that were acknowledged meanwhile are removed."""
        lost = self._lost
        while lost:
            segment = self.outstanding.get(lost[0])
            if segment is not None and segment.state is SegmentState.LOST:
                return True
            heappop(lost)
        return False

    def _may_resend(self, segment: Segment) -> bool:
        # The oldest segment may leave whatever the edge is: the others may wait for it, and no timer runs for them.
        return self.edge_used + segment.size <= self.edge_bytes or segment.sequence == self.oldest

    def _cut_size(self, size_max: int) -> int:
        """Return how many new bytes may leave in one segment now."""
        wanted = self.written_bytes - self.sent_offset
        if wanted > size_max:
            wanted = size_max
        edge_room = self.edge_bytes - self.edge_used
        peer_room = self.peer_edge - self.sent_offset
        if wanted <= TRICKLE_BYTES and wanted <= edge_room and wanted <= peer_room:
            return wanted  # the usual case of small writes
        head_bytes = len(self._pending[0])
        if head_bytes >= JOIN_BYTES:
            wanted = min(wanted, head_bytes)
        if not self.edge_used:
            edge_room = max(edge_room, TRICKLE_BYTES)  # 4.11: one packet may always be in flight
        size = min(wanted, peer_room, edge_room)
        if size == wanted or size >= TRICKLE_BYTES or not self.outstanding:
            return size
        return 0

    def _cut(self, size: int) -> Buffer:
        """Remove the next `size` unsent bytes and return them as one buffer. Small chunks are joined."""
        pending = self._pending
        head = pending[0]
        if len(head) == size:
            return pending.popleft()
        if len(head) > size:
            view = memoryview(head)
            pending[0] = view[size:]
            return view[:size]
        parts: list[Buffer] = []
        wanted = size
        while wanted:
            head = pending.popleft()
            if len(head) > wanted:
                view = memoryview(head)
                pending.appendleft(view[wanted:])
                head = view[:wanted]
            parts.append(head)
            wanted -= len(head)
        return b"".join(parts)

    def _number(self, packet_type: int, payload: Buffer, size: int) -> Segment:
        segment = Segment(self.next_sequence, packet_type, payload, self.sent_offset, size)
        self.outstanding[self.next_sequence] = segment
        self.next_sequence += 1
        self.sent_offset += size
        if size:
            self._digest.update(payload)
        return segment

    def _number_end(self, packet_type: int) -> Segment:
        received = None
        if packet_type == PacketType.CLOSE:
            self.close_sequence = self.next_sequence
            received = self.close_received
        end = End(self.sent_offset, self.digest(), None if received is None else wrap(received))
        return self._number(packet_type, encode_end(end), 0)

    def _uncharge(self, segment: Segment) -> None:
        if segment.charged:
            segment.charged = False
            self.edge_used -= segment.size
