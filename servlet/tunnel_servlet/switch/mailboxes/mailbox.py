"""The mailbox: it stores the packets that wait for one attachment, up to a limit, and decides their order.

Clause 9.2 of docs/PROTOCOL.md.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from tunnel.exchange.served.outbox import PACKETS_ANY
from tunnel.wire import (
    HEADER_SIZE,
    IN_STREAM,
    ROUTE_KEY_SIZE,
    TO_SOURCE,
    Dropped,
    DropReason,
    Frame,
    PacketType,
    decode_dropped,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.mailboxes.budgets import Budget, charge, charge_all, keep
from tunnel_servlet.switch.mailboxes.queues import NOTICE_BYTES, RouteQueue
from tunnel_servlet.switch.mailboxes.rate_turns import Pacing
from tunnel_servlet.switch.own_packets import dropped_frame
from tunnel_servlet.switch.stats import Counters, Traffic

__all__ = ["Mailbox"]

_CONNECT, _EDGE, _DROPPED = map(int, (PacketType.CONNECT, PacketType.EDGE, PacketType.DROPPED))
_ABORT, _DATA = int(PacketType.ABORT), int(PacketType.DATA)
_WORTHLESS = frozenset((int(PacketType.DATA), _EDGE))  # not put back if their route has ended
_WITHOUT_ROUTE = frozenset((int(DropReason.NO_ROUTE), int(DropReason.GONE)))
_NOTHING = Dropped(DropReason.NO_ROUTE, 0, 0, 0)

GeneralKey = tuple[str, int]


class Mailbox:
    """The packets for one attachment. `take` returns those that leave next. The caller must later pass each of them to
    `confirmed` or `put_back`. The mailbox calls `wake` when a packet starts to wait.

    Packets that belong to no route leave first, then the control packets of the routes in turn, then the routes'
    streams by deficit round robin. A stream that was idle goes first with its first quantum; while other streams wait,
    such streams get half of the bytes that are left in a batch. One thing because whatever comes or leaves changes the
    order of all that waits, and what is charged for it.
    """

    def __init__(
        self, budget: Budget, config: SwitchConfig, counters: Counters, pacing: Pacing, wake: Callable[[], None]
    ) -> None:
        self.budget = budget
        self.traffic = Traffic()  # replaced by the user's when the mailbox has one
        self.queues: dict[int, RouteQueue] = {}  # by the id that the receiving endpoint has given the connection
        self._config, self._counters, self._pacing, self._wake = config, counters, pacing, wake
        self.general: OrderedDict[GeneralKey, Frame] = OrderedDict()
        self.notices: OrderedDict[int, int] = OrderedDict()  # DROPPED for ids without a route: own id, reason
        self.wanted: dict[bytes, None] = {}  # route keys of CONNECTs that still need an answer
        self._returned = 0  # makes keys for packets that were put back and have no queue
        # Lists, since most of them are always empty: an empty deque has 0.7 KiB, and each attachment has these three.
        self.control_ring: list[RouteQueue] = []
        self.fresh: list[RouteQueue] = []
        self.ring: list[RouteQueue] = []
        self.parcel: list[Frame] = []  # the packets of a batch that came when nothing waited (`short_way`)
        self.parcel_queue: RouteQueue | None = None  # to which they belong
        self._parcel_bytes = 0  # as charged

    @property
    def waiting(self) -> bool:
        """Whether `take` would return any packet."""
        return bool(self.parcel or self.general or self.notices or self.control_ring or self.fresh or self.ring)

    @property
    def holds_abort(self) -> bool:
        """Whether an ABORT waits of a connection that has no route any more, as after a kick."""
        return any(frame.type == _ABORT for frame in self.general.values())

    # --- routes

    def open(self, own_id: int) -> RouteQueue | None:
        """Return a new queue with its reservation, or None if no reservation is left. The caller must `adopt` or
        `close` it."""
        if not self.budget.reserve(self._config.reserved_bytes):
            return None
        return RouteQueue(own_id, self.budget, self._config, self._counters, self._attend)

    def adopt(self, queue: RouteQueue, own_id: int) -> None:
        """Register the queue under the id that the endpoint has given the connection, which has a route now."""
        if self.parcel:
            self.unpack()
        self.queues[own_id] = queue
        self.notices.pop(own_id, None)

    def close(self, queue: RouteQueue) -> None:
        """End a queue and discard its stream. Its control packets still leave, unless its route was never bound."""
        if self.parcel:
            self.unpack()
        self.budget.unreserve(queue.shrink())
        for frame in reversed(queue.close()):  # each goes to the head, and no ABORT may overtake the ACCEPTED
            self._keep_general(self._next_key(), frame)
        if queue.listed:
            (self.fresh if queue in self.fresh else self.ring).remove(queue)
        if queue.control_listed:
            self.control_ring.remove(queue)
        queue.listed = queue.control_listed = False
        if self.queues.get(queue.own_id) is queue:
            del self.queues[queue.own_id]

    # --- arriving packets

    def put(self, queue: RouteQueue, frame: Frame) -> bool:
        """Store a packet of the queue's stream; return False if it was dropped."""
        if self.parcel:
            self.unpack()
        kept = queue.put(frame)
        if queue.paces:
            self._place(queue)
        elif kept and not queue.listed and not queue.blocked:
            self._list(queue)
        return kept

    def put_control(self, queue: RouteQueue, frame: Frame) -> bool:
        """Store a control packet of the queue, which leaves before the stream; return False if it was dropped."""
        if self.parcel:
            self.unpack()
        kept = queue.put_control(frame)
        if not kept:
            self._counters.packets_dropped_full += 1
        elif not queue.control_listed:
            self._attend(queue)
        return kept

    def put_parcel(self, queue: RouteQueue, frames: Sequence[Frame], charged: int) -> bool:
        """Store packets of one queue while nothing else waits: an ACK and the stream's next packet, or one of them.

        They leave together, in this order. Return False, and store nothing, if there is no room for all of them.
        """
        budget = self.budget
        if not budget.admits(charged):
            return False
        for frame in frames:
            keep(frame, budget)
        budget.hold(charged)
        last = frames[-1]
        if last.type == _DATA:
            queue.data_bytes += len(last.data) - HEADER_SIZE
        self.parcel[:] = frames
        self.parcel_queue = queue
        self._parcel_bytes = charged
        self._wake()
        return True

    def unpack(self) -> None:
        """Let the packets of the parcel, if there is one, wait as if each had come alone."""
        queue = self.parcel_queue
        if queue is None:
            return
        frames = self._forget_parcel(queue)
        self.budget.release(self._parcel_bytes)
        wake, self._wake = self._wake, _stay  # the attachment was woken when the parcel came
        for frame in frames:
            if frame.type == _DATA:
                self.put(queue, frame)
            else:
                self.put_control(queue, frame)
        self._wake = wake

    def _forget_parcel(self, queue: RouteQueue) -> list[Frame]:
        frames, self.parcel = self.parcel, []
        self.parcel_queue = None
        last = frames[-1]
        if last.type == _DATA:
            queue.data_bytes -= len(last.data) - HEADER_SIZE
        return frames

    def post(self, key: GeneralKey, frame: Frame) -> bool:
        """Store a packet of no route, in place of one with the same key. Return False if it was dropped."""
        kept = self._store(key, frame)
        self._counters.packets_dropped_full += not kept
        return kept

    def _store(self, key: GeneralKey, frame: Frame) -> bool:
        old = self.general.get(key)
        size = charge(frame) - (charge(old) if old is not None else 0)
        if len(self.general) >= self._config.general_packets_max and old is None:
            return False
        if not self.budget.admits(size):
            return False
        self._counters.packets_replaced += old is not None
        keep(frame, self.budget)
        self.budget.hold(size)
        self.general[key] = frame
        self._wake()
        return True

    def notice(self, own_id: int, reason: int) -> bool:
        """Queue DROPPED for an id of the attachment that has no route; at most one waits for each id (6.7).

        Return False if too many wait.
        """
        if len(self.notices) >= self._config.notices_max and own_id not in self.notices:
            self._counters.packets_dropped_full += 1
            return False
        self.notices[own_id] = reason
        self._wake()
        return True

    def post_connect(self, route_key: bytes, frame: Frame) -> bool:
        """Queue a CONNECT for the attachment; return False if there is no room, which the caller counts.

        Until `withdraw_connect` is called, it is queued again each time it was sent and did not arrive.
        """
        if not self._store(_connect_key(route_key), frame):
            return False
        self.wanted[route_key] = None
        return True

    def has_connect(self, route_key: bytes) -> bool:
        """Whether a CONNECT with this route key waits for the attachment."""
        return _connect_key(route_key) in self.general

    def withdraw_connect(self, route_key: bytes) -> bool:
        """Discard a CONNECT that was answered, whose route has ended, or that another acceptor gets. Return whether it
        waited; the caller counts it."""
        self.wanted.pop(route_key, None)
        frame = self.general.pop(_connect_key(route_key), None)
        if frame is not None:
            self.budget.release(charge(frame))
        return frame is not None

    def end(self) -> None:
        """Count the packets that wait, and all that was taken, as gone. The caller must not use this mailbox
        afterwards."""
        self._counters.packets_ended += len(self.general)
        self.budget.close()

    # --- leaving packets

    def take(self, limit_bytes: int, packets_max: int = PACKETS_ANY, carrier: Traffic | None = None) -> list[Frame]:
        """Return the packets that leave next: at most `limit_bytes`, but at least one packet if any waits. They are at
        most `packets_max`, and at most as many as one answer may hold."""
        packets_max = min(packets_max, self._config.packets_per_answer_max)
        frames: list[Frame] = []
        size = 0
        queue = self.parcel_queue
        if queue is not None:
            if self._is_whole(queue, limit_bytes, packets_max):
                return self._take_parcel(queue, carrier)
            self.unpack()
        if self.general or self.notices or self.control_ring:
            streams_wait = bool(self.fresh or self.ring)
            share = 2 if streams_wait else 1
            size = self._take_control(frames, limit_bytes // share, -(-packets_max // share))
        if self.fresh or self.ring:
            size = self._take_streams(frames, size, limit_bytes, packets_max)
        if frames:
            self.budget.let_go(charge_all(frames))
            self._count_sent(len(frames), size, carrier)
        return frames

    def _count_sent(self, packets: int, size: int, carrier: Traffic | None) -> None:
        self._counters.packets_sent += packets
        self._counters.bytes_sent += size
        self.traffic.packets_sent += packets
        self.traffic.bytes_sent += size
        if carrier is not None:
            carrier.packets_sent += packets
            carrier.bytes_sent += size

    def _is_whole(self, queue: RouteQueue, limit_bytes: int, packets_max: int) -> bool:
        """Whether the parcel leaves as it came: nothing else waits, and its batch has room."""
        if self.general or self.notices or self.control_ring or self.fresh or self.ring:
            return False
        return limit_bytes >= 2 * self._parcel_bytes and packets_max >= 4 and not queue.paces and not queue.beyond

    def _take_parcel(self, queue: RouteQueue, carrier: Traffic | None) -> list[Frame]:
        frames = self._forget_parcel(queue)
        size = 0
        for frame in frames:
            size += len(frame.data)
        queue.cleared_bytes -= size
        last = frames[-1]
        if last.type == _DATA:
            ledger, payload_bytes = queue.ledger, len(last.data) - HEADER_SIZE
            ledger.newest = ledger.s = ledger.newest + 1
            ledger.passed_bytes += payload_bytes
            if queue.edge_is_due():
                queue.announce()
        self.budget.let_go(self._parcel_bytes)
        self._count_sent(len(frames), size, carrier)
        return frames

    def release_taken(self, frames: Iterable[Frame]) -> None:
        """Release packets that were taken and have arrived, or will not be put back."""
        self.budget.settle(charge_all(frames))

    def put_back(self, frames: list[Frame]) -> None:
        """Put packets that were taken and did not arrive back at the head, in this order."""
        self.unpack()
        self.budget.let_go(-charge_all(frames))
        self._counters.packets_taken_back += len(frames)
        for frame in reversed(frames):
            self._put_back(frame)
        if self.waiting:
            self._wake()

    # --- inside

    def _put_back(self, frame: Frame) -> None:
        kind = frame.type
        if kind == _DROPPED:
            self._put_back_notice(frame)
            return
        if kind == _CONNECT:
            self._put_back_connect(frame)
            return
        queue = self.queues.get(frame.source if kind in TO_SOURCE else frame.destination)
        if queue is None:
            if kind in _WORTHLESS:
                self._discard(frame)
            else:
                self._keep_general(self._next_key(), frame)
        elif kind == _EDGE:
            queue.edge_due = True  # the queue will announce the present edge, which may be newer
            self._attend(queue)
        elif not queue.put_back(frame):
            self.budget.release(charge(frame))
            self._counters.packets_replaced += 1
        elif kind not in IN_STREAM or queue.paces:
            self._attend(queue)
        elif not queue.listed:
            self._list(queue)

    def _put_back_notice(self, frame: Frame) -> None:
        dropped = decode_dropped(frame.payload) or _NOTHING
        queue = self.queues.get(frame.destination)
        if queue is not None and dropped.reason not in _WITHOUT_ROUTE:
            queue.note_dropped_again(dropped)
        elif queue is None and dropped.reason in _WITHOUT_ROUTE:
            self.notice(frame.destination, dropped.reason)

    def _put_back_connect(self, frame: Frame) -> None:
        route_key = bytes(frame.payload[:ROUTE_KEY_SIZE])
        key = _connect_key(route_key)
        if route_key in self.wanted and key not in self.general:
            self._keep_general(key, frame)
        else:
            self._discard(frame)

    def _keep_general(self, key: GeneralKey, frame: Frame) -> None:
        """Put a packet that already counts as held at the head of the packets without a route."""
        if len(self.general) >= self._config.general_packets_max:
            self.budget.release(charge(frame))
            self._counters.packets_dropped_full += 1
            return
        self.general[key] = frame
        self.general.move_to_end(key, last=False)
        self._wake()

    def _discard(self, frame: Frame) -> None:
        """Release a packet whose route has ended. The relay's own EDGE is no packet that was to be delivered."""
        self.budget.release(charge(frame))
        self._counters.packets_ended += frame.type != _EDGE

    def _next_key(self) -> GeneralKey:
        self._returned += 1
        return "returned", self._returned

    def _list(self, queue: RouteQueue) -> None:
        queue.listed = True
        if queue.is_fresh:
            queue.deficit = self._config.quantum_bytes
            self.fresh.append(queue)
        else:
            self.ring.append(queue)
        self._wake()

    def _place(self, queue: RouteQueue) -> None:
        """List the queue if its stream may leave now, else unlist it. Let it ask for its turn if it waits for rates."""
        if queue.has_data:
            if not queue.listed:
                self._list(queue)
        elif queue.listed:
            queue.listed = False
            (self.fresh if queue in self.fresh else self.ring).remove(queue)
        if queue.must_ask:
            self._pacing.ask(queue)

    def _attend(self, queue: RouteQueue) -> None:
        """List the queue if something waits in it that did not come by `put`."""
        self.unpack()
        if queue.has_control and not queue.control_listed:
            queue.control_listed = True
            self.control_ring.append(queue)
            self._wake()
        self._place(queue)

    def _take_control(self, frames: list[Frame], limit_bytes: int, packets_max: int) -> int:
        size = 0
        while self.notices:
            if frames and (size + NOTICE_BYTES > limit_bytes or len(frames) >= packets_max):
                return size
            found = dropped_frame(*self.notices.popitem(last=False))
            frames.append(found)
            size += len(found.data)
        while self.general:
            key, frame = next(iter(self.general.items()))
            if frames and (size + len(frame.data) > limit_bytes or len(frames) >= packets_max):
                return size
            del self.general[key]
            frames.append(frame)
            size += len(frame.data)
        while self.control_ring:
            queue = self.control_ring[0]
            while len(frames) < packets_max:
                control = queue.pop_control(limit_bytes - size if frames else 1 << 31)
                if control is None:
                    break
                frames.append(control)
                size += len(control.data)
            if queue.has_control:
                return size
            queue.control_listed = False
            del self.control_ring[0]
            if queue.must_ask:
                self._pacing.ask(queue)
        return size

    def _take_streams(self, frames: list[Frame], size: int, limit_bytes: int, packets_max: int) -> int:
        fresh, ring = self.fresh, self.ring
        fresh_until = size + (limit_bytes - size) // 2
        while fresh or ring:
            turns = fresh if fresh and (not ring or size < fresh_until) else ring
            queue = turns[0]
            head_bytes = queue.head_bytes
            if queue.deficit < head_bytes:
                queue.deficit += self._config.quantum_bytes
                del turns[0]
                ring.append(queue)
                continue
            if frames and (size + head_bytes > limit_bytes or len(frames) >= packets_max):
                break
            frames.append(queue.pop())
            size += head_bytes
            queue.deficit -= head_bytes
            if not queue.has_data:
                del turns[0]
                queue.listed = False
                queue.is_fresh = not queue.keys
                if queue.must_ask:
                    self._pacing.ask(queue)
            if queue.edge_is_due():
                queue.announce()
        return size


def _stay() -> None:
    """Wake nothing."""


def _connect_key(route_key: bytes) -> GeneralKey:
    return "connect", int.from_bytes(route_key, "big")
