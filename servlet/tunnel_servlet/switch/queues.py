"""What waits for one side of one route: the stream in order of sequence, and what goes before it (9.2, 9.3)."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable

from tunnel.wire import HEADER_SIZE, Dropped, DropReason, Frame, PacketType, readdress, unwrap, wrap
from tunnel_servlet.switch.budgets import Budget, charge, keep
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.edges import EdgeLedger
from tunnel_servlet.switch.own_packets import dropped_frame, edge_frame
from tunnel_servlet.switch.stats import Counters

__all__ = ["IN_STREAM", "NOTICE_BYTES", "RouteQueue"]

# These keep their place in the sequence. CLOSE must not overtake what it closes: its acknowledgement would make the
# sender believe that all before it was lost.
IN_STREAM = frozenset(map(int, (PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.OPTION)))

_DATA, _ACK = int(PacketType.DATA), int(PacketType.ACK)
_KNOWN = frozenset(map(int, PacketType))
_ACKS_MAX = 8  # the newest: an ACK says all that older ones said, but lanes may have let one overtake another
_DROPS_MAX = 8  # ranges that wait to be named; what is not named is repaired by the sender's timers
NOTICE_BYTES = HEADER_SIZE + 16  # the larger of DROPPED and EDGE


class RouteQueue:
    """One direction of one route, in the mailbox of the receiving attachment.

    `back` is the other direction: notices to the sender travel there. `notify` is called when something is to be said.
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
        self.own_id = own_id  # the receiving endpoint's id; 0 until it is known
        self.back = self
        self.reserved_bytes = config.reserved_bytes  # whoever made this has reserved it
        self.blocked = False  # not bound yet: everything is held (3.6)
        self.listed = self.control_listed = False  # in the mailbox's rings
        self.deficit = 0
        self.data_bytes = 0  # payload of DATA that waits
        self.control_bytes = 0  # what is not DATA, as charged
        self.edge_due = False  # the receiver of this queue is to hear the edge of `back`
        self.ledger = EdgeLedger(config.initial_edge_bytes, config.reserved_bytes >> 2)
        self._budget, self._config, self._counters, self._notify = budget, config, counters, notify
        self.keys: list[int] = []  # of the stream's packets that wait, ascending
        self.frames: dict[int, Frame] = {}
        self.acks: list[Frame] = []
        self.control: OrderedDict[int, Frame] = OrderedDict()
        self._drops: list[list[int]] = []  # reason, first, last, limit
        self.beyond = 0  # bytes of the pool in use

    # --- what waits

    @property
    def has_data(self) -> bool:
        """Packets of the stream wait and may leave."""
        return bool(self.keys) and not self.blocked

    @property
    def has_control(self) -> bool:
        """Something waits that goes before the stream."""
        return bool(self.control or self.acks or self._drops or self.edge_due) and not self.blocked

    @property
    def head_bytes(self) -> int:
        """Size of the stream's next packet; there must be one."""
        return len(self.frames[self.keys[0]].data)

    def limit(self) -> int:
        """Payload that may wait: what is reserved, and as much of the pool as would then still be free (9.2)."""
        spare = max(0, self._budget.free() + self.beyond) // 2
        return self.reserved_bytes + min(spare, self._config.route_bytes_max - self.reserved_bytes)

    def edge_is_due(self) -> bool:
        """Whether the sender should hear of its edge (9.4). Asked after packets were let go."""
        ledger = self.ledger
        if ledger.has_moved():
            return ledger.is_due(self.limit()) or (ledger.is_smaller and not self.keys)
        return ledger.is_smaller and not self.keys

    def is_promised_too_much(self) -> bool:
        """Whether the initial edge, which the sender believes in, is beyond what may wait (7.12)."""
        return self.limit() < self._config.initial_edge_bytes

    # --- commands

    def put(self, frame: Frame) -> bool:
        """Keep a packet of the stream; False if it was dropped, and the sender will be told."""
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
        """Keep a packet that goes before the stream; it replaces one of its type. False if it was dropped."""
        size = charge(frame)
        if frame.type == _ACK:
            if not self._budget.admits(size):
                return False
            if len(self.acks) == _ACKS_MAX:
                self._budget.release(charge(self.acks.pop(0)))
            self.acks.append(frame)
        else:
            key = _control_key(frame)
            if key in self.control:
                size -= charge(self.control[key])
            if not self._admit_control(size):
                return False
            self.control[key] = frame
            self.control_bytes += size
        keep(frame, self._budget)
        self._budget.hold(size)
        return True

    def pop(self) -> Frame:
        """The stream's next packet, let go; there must be one. It stays counted as held."""
        key = self.keys.pop(0)
        frame = self.frames.pop(key)
        if frame.type == _DATA:
            size = len(frame.data) - HEADER_SIZE
            self._count(-size)
            self.ledger.let_go(key, size)
        else:
            self.control_bytes -= charge(frame)
            self.ledger.let_go(key, 0)
        return frame

    def pop_control(self, room: int) -> Frame | None:
        """The next packet before the stream; None if there is none that fits. It stays counted as held."""
        if self._drops or self.edge_due:
            return self._make_notice() if room >= NOTICE_BYTES else None
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

    def put_back(self, frame: Frame) -> bool:
        """Take again, first in line, what was let go and did not arrive; False if a newer copy makes it needless.

        It never stopped being counted as held.
        """
        if frame.type == _ACK:
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
        """The receiver's id is known: it is written into what was held (3.6), which may leave now."""
        self.own_id = own_id
        self.blocked = False
        for frames in (self.frames, self.control):
            for key, frame in frames.items():
                frames[key] = readdress(frame, destination=own_id)
        self.acks = [readdress(frame, destination=own_id) for frame in self.acks]
        self.attend()

    def shrink(self) -> int:
        """Use no reservation any more (9.5); how many bytes the caller is to unreserve."""
        size, self.reserved_bytes = self.reserved_bytes, 0
        self._count(0)
        return size

    def close(self) -> list[Frame]:
        """The route is released, and the stream worth nothing any more. What went before it is given, still held."""
        self._budget.release(sum(map(charge, self.frames.values())))
        self._count(-self.data_bytes)
        kept = [*self.acks, *self.control.values()]
        self.keys, self.frames, self.acks, self.control, self._drops = [], {}, [], OrderedDict(), []
        self.control_bytes = 0
        self.edge_due = False
        if not self.blocked:
            return kept
        self._budget.release(sum(map(charge, kept)))
        return []

    def attend(self) -> None:
        """Tell the mailbox that something may wait."""
        self._notify(self)

    def announce(self) -> None:
        """The sender is to hear of its edge; of the newest that there is when it is told."""
        if not self.back.edge_due:
            self.back.edge_due = True
            self.back.attend()

    def note_dropped(self, reason: int, sequence: int, limit: int) -> None:
        """The receiver of this queue is to be told that a packet of its own was dropped (2.9)."""
        last = self._drops[-1] if self._drops else [0, 0, 0, 0]
        if last[0] == reason and last[1] - 1 <= sequence <= last[2] + 1:
            last[1], last[2] = min(last[1], sequence), max(last[2], sequence)
        elif len(self._drops) < _DROPS_MAX:
            self._drops.append([reason, sequence, sequence, limit])
        self.attend()

    def note_dropped_again(self, dropped: Dropped) -> None:
        """A DROPPED of this route did not arrive."""
        if len(self._drops) < _DROPS_MAX:
            near = self.back.ledger.newest
            first, last = unwrap(dropped.first, near), unwrap(dropped.last, near)
            self._drops.insert(0, [dropped.reason, first, last, dropped.limit])
            self.attend()

    # --- inside

    def _admit_data(self, key: int, frame: Frame, size: int) -> bool:
        """9.3."""
        if not self._budget.admits(size):
            return False
        after = self.data_bytes + len(frame.data) - HEADER_SIZE
        if self.blocked and after > self._config.early_bytes_max:
            return False
        if after <= self.reserved_bytes or not self.data_bytes:
            return True
        limit = self.limit()
        # What comes before something that waits is worth more to the receiver than what comes last.
        while after > limit and self.keys and self.keys[-1] > key:
            after -= self._evict()
        return after <= limit or not self.data_bytes

    def _admit_control(self, size: int) -> bool:
        return self.control_bytes + size <= self._config.control_bytes_max and self._budget.admits(size)

    def _evict(self) -> int:
        """Drop the last of the stream; how much payload that was."""
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
        """Nothing more fits: the sender is to wait until it hears of more room."""
        self._counters.packets_dropped_full += 1
        self.ledger.named_dropped(self.data_bytes - self.ledger.late_bytes)
        self.back.note_dropped(DropReason.FULL, key, 0)

    def _replace(self, key: int, frame: Frame) -> None:
        """One copy per sequence: the later attempt stays, in the place of the earlier (9.2)."""
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
        """The payload that waits has changed by `size`."""
        self.data_bytes += size
        beyond = max(0, self.data_bytes - self.reserved_bytes)
        if beyond != self.beyond:
            self._budget.exceed(beyond - self.beyond)
            self.beyond = beyond

    def _make_notice(self) -> Frame:
        """What the receiver of this queue is to know about its sending."""
        if self._drops:
            reason, first, last, limit = self._drops.pop(0)
            return dropped_frame(self.own_id, reason, wrap(first), wrap(last), limit)
        self.edge_due = False
        ledger, limit = self.back.ledger, self.back.limit()
        sequence, room_bytes = ledger.room(limit)
        ledger.announced(room_bytes, limit)
        return edge_frame(self.own_id, sequence, room_bytes)


def _control_key(frame: Frame) -> int:
    """What one copy is kept of: each type; of types that we do not know, each sequence."""
    return frame.type if frame.type in _KNOWN else frame.type | frame.sequence << 8
