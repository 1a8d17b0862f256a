"""The queue of one direction of a route: the stream in sequence order, and the control packets, which leave first.

Clauses 9.2, 9.3 of docs/PROTOCOL.md.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from tunnel.wire import (
    HEADER_SIZE,
    IN_STREAM,
    Copies,
    Dropped,
    DropReason,
    Frame,
    PacketType,
    readdress,
    types_kept,
    unwrap,
    wrap,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.mailboxes.budgets import Budget, charge, charge_all, keep
from tunnel_servlet.switch.mailboxes.edges import EdgeLedger
from tunnel_servlet.switch.mailboxes.rate_turns import Payer
from tunnel_servlet.switch.own_packets import dropped_frame, edge_frame
from tunnel_servlet.switch.stats import Counters

__all__ = ["NOTICE_BYTES", "RouteQueue"]

_DATA = int(PacketType.DATA)
_SEVERAL, _FIRST, _ONE = types_kept(Copies.SEVERAL), types_kept(Copies.FIRST), types_kept(Copies.NEWEST, Copies.FIRST)
_ACKS_MAX = 8  # 9.2
_DROPS_MAX = 8  # dropped ranges that wait for a DROPPED to name them; the sender's timers repair others
NOTICE_BYTES = HEADER_SIZE + 16  # the larger of DROPPED and EDGE
_CONTROL_DEBT_MAX = 16 << 10  # bytes of control packets that may leave before the rates have let them pass


class RouteQueue(Payer):
    """One direction of one route, in the mailbox of the receiving attachment.

    `back` is the queue of the other direction, which carries notices to the sender. The queue calls `notify` when
    packets or notices may wait that the mailbox does not know of. One thing because every packet that enters or leaves
    changes the bytes that are charged, the edge and the mailbox's rings together.
    """

    __slots__ = (
        "_budget",
        "_config",
        "_counters",
        "_drops",
        "_notify",
        "acks",
        "back",
        "beyond",
        "blocked",
        "control",
        "control_bytes",
        "control_listed",
        "data_bytes",
        "deficit",
        "edge_due",
        "frames",
        "is_fresh",
        "keys",
        "ledger",
        "listed",
        "own_id",
        "reserved_bytes",
    )

    def __init__(
        self,
        own_id: int,
        budget: Budget,
        config: SwitchConfig,
        counters: Counters,
        notify: Callable[["RouteQueue"], None],
    ) -> None:
        super().__init__()
        self.own_id = own_id  # the receiving endpoint's id; 0 until it is known
        self.back = self
        self.reserved_bytes = config.reserved_bytes  # the creator of the queue has reserved it
        self.blocked = False  # the route is not bound yet: every packet is held (3.6)
        self.listed = self.control_listed = False  # in the mailbox's rings
        self.deficit = 0
        self.is_fresh = True  # when the mailbox last took this queue out of its rings, no packet of the stream waited
        self.data_bytes = 0  # payload of waiting DATA
        self.control_bytes = 0  # waiting packets other than DATA and ACK, as charged
        self.edge_due = False  # the edge of `back` must be announced to the receiver of this queue
        self.ledger = EdgeLedger(config.initial_edge_bytes, config.reserved_bytes >> 2)
        self._budget, self._config, self._counters, self._notify = budget, config, counters, notify
        self.keys: list[int] = []  # of the waiting packets of the stream, ascending
        self.frames: dict[int, Frame] = {}
        self.acks: list[Frame] = []
        self.control: OrderedDict[int, Frame] = OrderedDict()
        self._drops: list[list[int]] = []  # reason, first, last, limit
        self.beyond = 0  # bytes of the pool that this queue uses

    # --- state

    @property
    def has_data(self) -> bool:
        """Whether packets of the stream wait and may leave."""
        return bool(self.keys) and not self.blocked and (not self.paces or self.cleared_bytes >= self.head_bytes)

    @property
    def has_control(self) -> bool:
        """Whether control packets or notices, which leave before the stream, wait and may leave."""
        waits = bool(self.control or self.acks or self._drops or self.edge_due) and not self.blocked
        return waits and not (self.paces and self._owes_much())

    @property
    def must_ask(self) -> bool:
        """Whether packets wait for the rates of this queue."""
        if not self.paces or self.blocked:
            return False
        return (bool(self.keys) and self.cleared_bytes < self.head_bytes) or self._owes_much()

    @property
    def head_bytes(self) -> int:
        """Size of the stream's next packet; there must be one."""
        return len(self.frames[self.keys[0]].data)

    def limit(self) -> int:
        """Return how much payload may wait: the reservation, and half of what the pool has free or gives this queue
        already (9.2)."""
        spare = max(0, self._budget.free() + self.beyond) // 2
        limit = self.reserved_bytes + min(spare, self._config.route_bytes_max - self.reserved_bytes)
        return min(limit, max(self.paced_bytes_max, self.reserved_bytes)) if self.paces else limit

    def edge_is_due(self) -> bool:
        """Whether the edge should be announced to the sender (9.4). Called after packets have left."""
        ledger = self.ledger
        if ledger.has_moved():
            return ledger.is_due(self.limit()) or (ledger.is_smaller and not self.keys)
        return ledger.is_smaller and not self.keys

    def is_promised_too_much(self) -> bool:
        """Whether the initial edge, which the sender assumes, exceeds the limit of this queue (7.12)."""
        return self.limit() < self._config.initial_edge_bytes

    # --- commands

    def put(self, frame: Frame) -> bool:
        """Store a packet of the stream. Return False if it was dropped; a DROPPED to the sender is then queued."""
        key = self.ledger.key(frame.sequence)
        if key in self.frames:
            self._replace(key, frame)
            return True
        size = charge(frame)
        if not (self._admit_data(key, frame, size) if frame.type == _DATA else self._admit_control(size)):
            self._name_dropped(key)
            return False
        keep(frame, self._budget)
        self._budget.hold(size)
        self._insert(key, frame)
        return True

    def put_control(self, frame: Frame) -> bool:
        """Store a control packet, unless `PACKET_TRAITS` keeps an earlier one of its type instead. Return False if it
        was dropped."""
        size = charge(frame)
        if frame.type in _SEVERAL:
            if not self._budget.admits(size):
                return False
            if len(self.acks) == _ACKS_MAX:
                self._budget.release(charge(self.acks.pop(0)))
                self._counters.packets_replaced += 1
            self.acks.append(frame)
        else:
            key = _control_key(frame)
            present = self.control.get(key)
            if present is not None:
                if frame.type in _FIRST:
                    self._counters.packets_replaced += 1
                    return True
                size -= charge(present)
            if not self._admit_control(size):
                return False
            self._counters.packets_replaced += present is not None
            self.control[key] = frame
            self.control_bytes += size
        keep(frame, self._budget)
        self._budget.hold(size)
        return True

    def pop(self) -> Frame:
        """Remove and return the stream's next packet; there must be one. It still counts as held."""
        key = self.keys.pop(0)
        frame = self.frames.pop(key)
        self.cleared_bytes -= len(frame.data)
        if frame.type == _DATA:
            size = len(frame.data) - HEADER_SIZE
            self._count(-size)
            self.ledger.let_go(key, size)
        else:
            self.control_bytes -= charge(frame)
            self.ledger.let_go(key, 0)
        return frame

    def pop_control(self, room: int) -> Frame | None:
        """Remove and return the next control packet, which still counts as held. Return None if none may leave, or if
        it exceeds `room` bytes."""
        if not self.has_control:
            return None
        if self._drops or self.edge_due:
            return self._make_notice() if room >= NOTICE_BYTES else None
        frame = self._pop_waiting_control(room)
        if frame is not None:
            self.cleared_bytes -= len(frame.data)
        return frame

    def _pop_waiting_control(self, room: int) -> Frame | None:
        if self.acks:
            return self.acks.pop(0) if len(self.acks[0].data) <= room else None
        if not self.control:
            return None
        key, frame = next(iter(self.control.items()))
        if len(frame.data) > room:
            return None
        del self.control[key]
        self.control_bytes -= charge(frame)
        return frame

    def next_bytes(self, turn_bytes: int) -> int:
        """Return the bytes to ask the rates for: packets that fit into the turn, at least one, and the debt so far."""
        size = 0
        for key in self.keys:
            head_bytes = len(self.frames[key].data)
            if size and size + head_bytes > turn_bytes:
                break
            size += head_bytes
        return max(0, size - self.cleared_bytes)

    def put_back(self, frame: Frame) -> bool:
        """Put a packet that left and did not arrive back at the head. Return False if newer ones make it superfluous.

        The packet has counted as held all the time.
        """
        if frame.type in _SEVERAL:
            if len(self.acks) == _ACKS_MAX:
                return False
            self.acks.insert(0, frame)
        elif frame.type in IN_STREAM:
            key = self.ledger.key(frame.sequence)
            if key in self.frames:
                return False
            self._insert(key, frame)
        else:
            key = _control_key(frame)
            if key in self.control:
                return False
            self.control[key] = frame
            self.control.move_to_end(key, last=False)
            self.control_bytes += charge(frame)
        return True

    def bind(self, own_id: int) -> None:
        """Set the receiver's id. It is written into the held packets, which may leave now (3.6)."""
        self.own_id = own_id
        self.blocked = False
        for frames in (self.frames, self.control):
            for key, frame in frames.items():
                frames[key] = readdress(frame, destination=own_id)
        self.acks = [readdress(frame, destination=own_id) for frame in self.acks]
        self.attend()

    def shrink(self) -> int:
        """Give up the reservation (9.5) and return its size in bytes, which the caller must unreserve."""
        size, self.reserved_bytes = self.reserved_bytes, 0
        self._count(0)
        return size

    def take_held(self) -> list[Frame]:
        """Remove and return the packets that wait for the route to be bound. They no longer count as held."""
        found = [*(self.frames[key] for key in self.keys), *self.acks, *self.control.values()]
        self._budget.release(charge_all(found))
        self._clear()
        return found

    def close(self) -> list[Frame]:
        """Discard the stream, because the route is released. Return the control packets, which still count as held.

        If the route was never bound they are discarded, too.
        """
        control = [*self.acks, *self.control.values()]
        ended = [*self.frames.values(), *(control if self.blocked else ())]
        self._budget.release(charge_all(ended))
        self._counters.packets_ended += len(ended)
        self._clear()
        return [] if self.blocked else control

    def attend(self) -> None:
        """Notify the mailbox that something may wait."""
        self._notify(self)

    def announce(self) -> None:
        """Queue an EDGE to the sender. It will carry the edge as it is when the packet leaves."""
        if not self.back.edge_due:
            self.back.edge_due = True
            self.back.attend()

    def note_dropped(self, reason: int, sequence: int, limit: int) -> None:
        """Queue a DROPPED to the receiver of this queue, because a packet that it sent was dropped (2.9)."""
        last = self._drops[-1] if self._drops else [0, 0, 0, 0]
        if last[0] == reason and last[1] - 1 <= sequence <= last[2] + 1:
            last[1], last[2] = min(last[1], sequence), max(last[2], sequence)
        elif len(self._drops) < _DROPS_MAX:
            self._drops.append([reason, sequence, sequence, limit])
        self.attend()

    def note_dropped_again(self, dropped: Dropped) -> None:
        """Queue a DROPPED of this route again, because it did not arrive."""
        if len(self._drops) < _DROPS_MAX:
            near = self.back.ledger.newest
            first, last = unwrap(dropped.first, near), unwrap(dropped.last, near)
            self._drops.insert(0, [dropped.reason, first, last, dropped.limit])
            self.attend()

    # --- inside

    def _owes_much(self) -> bool:
        """Whether the debt for control packets that have left is so large that the next one must wait."""
        return self.cleared_bytes <= -_CONTROL_DEBT_MAX

    def _clear(self) -> None:
        self._count(-self.data_bytes)
        self.keys, self.frames, self.acks, self.control, self._drops = [], {}, [], OrderedDict(), []
        self.control_bytes = 0
        self.edge_due = False

    def _admit_data(self, key: int, frame: Frame, size: int) -> bool:
        """Decide whether a DATA packet is stored; later packets are dropped to make room for it if necessary (9.3)."""
        if not self._budget.admits(size):
            return False
        after = self.data_bytes + len(frame.data) - HEADER_SIZE
        if self.blocked and after > self._config.early_bytes_max:
            return False
        if after <= self.reserved_bytes or not self.data_bytes:
            return True
        limit = self.limit()
        # A packet that precedes waiting ones is worth more to the receiver than the last of them.
        while after > limit and self.keys and self.keys[-1] > key:
            after -= self._evict()
        return after <= limit or not self.data_bytes

    def _admit_control(self, size: int) -> bool:
        return self.control_bytes + size <= self._config.control_bytes_max and self._budget.admits(size)

    def _evict(self) -> int:
        """Drop the stream's last packet and return the size of its payload."""
        key = self.keys.pop()
        frame = self.frames.pop(key)
        self._budget.release(charge(frame))
        size = 0
        if frame.type == _DATA:
            size = len(frame.data) - HEADER_SIZE
            self._count(-size)
            if key <= self.ledger.s:
                self.ledger.late_bytes -= size
        else:
            self.control_bytes -= charge(frame)
        self._name_dropped(key)
        return size

    def _name_dropped(self, key: int) -> None:
        """Queue DROPPED(full) to the sender, which then pauses (4.10)."""
        self._counters.packets_dropped_full += 1
        self.ledger.named_dropped(self.data_bytes - self.ledger.late_bytes)
        self.back.note_dropped(DropReason.FULL, key, 0)

    def _replace(self, key: int, frame: Frame) -> None:
        """Keep one copy of the packet: the later attempt, in place of the earlier one (9.2)."""
        old = self.frames[key]
        self._counters.packets_replaced += 1
        if (frame.attempt - old.attempt) & 0xFF < 0x80 and frame.type == old.type and len(frame.data) == len(old.data):
            keep(frame, self._budget)
            self.frames[key] = frame

    def _insert(self, key: int, frame: Frame) -> None:
        ledger = self.ledger
        if key > ledger.newest:
            ledger.newest = key
        if not self.keys or key > self.keys[-1]:
            self.keys.append(key)
        else:
            insort(self.keys, key)
        self.frames[key] = frame
        if frame.type != _DATA:
            self.control_bytes += charge(frame)
            return
        size = len(frame.data) - HEADER_SIZE
        self._count(size)
        if key <= ledger.s:
            ledger.late_bytes += size

    def _count(self, size: int) -> None:
        """Change the count of waiting payload by `size`."""
        self.data_bytes += size
        beyond = max(0, self.data_bytes - self.reserved_bytes)
        if beyond != self.beyond:
            self._budget.exceed(beyond - self.beyond)
            self.beyond = beyond

    def _make_notice(self) -> Frame:
        """Build the next notice to the receiver of this queue about the packets that it sends: DROPPED or EDGE."""
        if self._drops:
            reason, first, last, limit = self._drops.pop(0)
            return dropped_frame(self.own_id, reason, wrap(first), wrap(last), limit)
        self.edge_due = False
        ledger, limit = self.back.ledger, self.back.limit()
        sequence, room_bytes = ledger.room(limit)
        ledger.on_announced(room_bytes, limit)
        return edge_frame(self.own_id, sequence, room_bytes)


def _control_key(frame: Frame) -> int:
    """Return the key under which one copy is kept: the type, or the type and the sequence number."""
    return frame.type if frame.type in _ONE else frame.type | frame.sequence << 8
