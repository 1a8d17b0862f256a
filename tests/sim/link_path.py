"""A link: one upgraded TCP connection between a node and the relay, with both of its halves and its own faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.sim.clock import SECOND, Clock
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.path import PathShape, Strike
from tests.sim.pipe import Pipe
from tests.sim.randomness import between, log_between, pick
from tunnel.exchange import Lanes, LinkState
from tunnel.wire import Buffer, Packet, encode_packets, parse_frames, parse_packets
from tunnel_servlet.switch.switch import Switch

__all__ = ["LinkPath"]

K = FaultKind
NOTSENT_BYTES = 128 * 1024  # DESIGN section 6: TCP_NOTSENT_LOWAT
BATCH_BYTES = 64 * 1024
DEAD_US = 20 * SECOND  # TCP gives up on a dead path after this time
STALL_US_MAX = 10 * SECOND


class NodeSide(Protocol):
    """The node, as its link sees it."""

    index: int

    @property
    def now_us(self) -> int: ...

    @property
    def lanes(self) -> Lanes: ...

    @property
    def user(self) -> str: ...

    def later(self, delay_us: int, action: Callable[[], None]) -> object: ...

    def link_opened(self, link: LinkPath) -> None: ...

    def link_refused(self, link: LinkPath) -> None: ...

    def link_lost(self, link: LinkPath, unreceipted: list[int]) -> None: ...

    def link_receipted(self, token: int) -> None: ...

    def link_packets(self, packets: list[Packet]) -> None: ...


class RelaySide(Protocol):
    """The relay, as a link sees it."""

    switch: Switch

    @property
    def now_us(self) -> int: ...

    def link_opened(self, link: LinkPath, user: str, attachment_id: bytes, epoch: int, generation: int) -> int: ...

    def link_closed(self, number: int) -> None: ...

    def pump(self) -> None: ...


class LinkPath:
    """Opens, carries data until it is closed, and then notifies both sides, once each."""

    def __init__(
        self,
        clock: Clock,
        shape: PathShape,
        plan: FaultPlan,
        random: Random,
        strike: Strike,
        relay: RelaySide,
        node: NodeSide,
    ) -> None:
        self.up = Pipe(clock, shape.up_us, shape.bytes_per_second, self._arrived_up, self._up_stalled_until)
        self.down = Pipe(clock, shape.down_us, shape.bytes_per_second, self._arrived_down, self._down_stalled_until)
        self.is_open = False  # as the node sees it
        self._clock = clock
        self._shape = shape
        self._plan = plan
        self._random = random
        self._strike = strike
        self._relay = relay
        self._node = node
        self._near = LinkState()
        self._far = LinkState()
        self._number = 0  # the relay's number of this link; 0: the relay does not know it (any more)
        self._batches = 0
        self._stalled_until_us = 0
        self._over = False

    # life

    def open(self) -> None:
        """Connect by TCP, then upgrade: two round trips, unless the path swallows them."""
        round_trip_us = self._shape.up_us + self._shape.down_us
        if self._window_end(K.BLACKHOLE_UP) or self._window_end(K.BLACKHOLE_DOWN):
            self._clock.after(DEAD_US, self._die)
            return
        self._clock.after(round_trip_us + self._shape.up_us, self._reach_relay)

    def _reach_relay(self) -> None:
        lanes = self._node.lanes
        if self._over:
            return
        user, identity = self._node.user, lanes.attachment_id
        self._number = self._relay.link_opened(self, user, identity, lanes.epoch, lanes.generation)
        if not self._number:
            self._clock.after(self._shape.down_us, self._refuse)
            return
        self._clock.after(self._shape.down_us, self._opened)
        self._plan_fault()

    def _refuse(self) -> None:
        if not self._over:
            self._over = True
            self._node.link_refused(self)

    def _opened(self) -> None:
        if not self._over:
            self.is_open = True
            self._node.link_opened(self)

    def _die(self) -> None:
        """The connection breaks: nothing in flight arrives, and each side learns of it in its own time."""
        if self._over:
            return
        self._over = True
        self.up.cut()
        self.down.cut()
        self._clock.after(self._shape.down_us, self._tell_node)
        self._clock.after(self._shape.up_us, self._tell_relay)

    def _tell_node(self) -> None:
        self.is_open = False
        self._node.link_lost(self, self._near.unreceipted)

    def _tell_relay(self) -> None:
        if self._number:
            number, self._number = self._number, 0
            self._relay.link_closed(number)

    def cut_by_relay(self) -> None:
        """The relay has died: there is no relay to notify."""
        self._number = 0
        self._die()

    def cut_by_endpoint(self) -> None:
        """The endpoint has died: a notification would reach its next life."""
        self._die()

    # the node's side

    def room(self) -> int:
        """The number of bytes of a batch that may leave now."""
        if not self.is_open or self._over or self.up.backlog_bytes() >= NOTSENT_BYTES:
            return 0
        return BATCH_BYTES

    def send(self, packets: list[Packet], token: int) -> None:
        self.up.write(b"".join(self._near.send(encode_packets(packets), token)))
        self._wake_node_later()

    def _arrived_down(self, data: bytes) -> None:
        self._node.later(0, lambda: self._take_down(data))

    def _take_down(self, data: bytes) -> None:
        """The node reads; a paused node reads later."""
        if self._over:
            return
        found = self._near.receive(data, self._node.now_us)
        for token in found.receipts:
            self._node.link_receipted(token)
        for batch in found.batches:
            self._node.link_packets(parse_packets(batch)[0])
        if self._near.closed:
            self._die()
            return
        due_us = self._near.next_timeout()
        if due_us is not None:
            self._node.later(max(0, due_us - self._node.now_us), self._receipt_up)

    def _receipt_up(self) -> None:
        self._write(self.up, self._near.handle_timeout(self._node.now_us))

    def _wake_node_later(self) -> None:
        """When the backlog has drained, the node may send again."""
        if self.up.backlog_bytes() >= NOTSENT_BYTES:
            rest_us = (self.up.backlog_bytes() - NOTSENT_BYTES) * SECOND // self._shape.bytes_per_second
            self._node.later(rest_us + 1, lambda: None)

    # the relay's side

    def fill_down(self) -> None:
        """Write packets from the mailbox, as many as TCP takes."""
        while not self._over and self._number:
            backlog_bytes = self.down.backlog_bytes()
            if backlog_bytes >= NOTSENT_BYTES:
                rest_us = (backlog_bytes - NOTSENT_BYTES) * SECOND // self._shape.bytes_per_second
                self._clock.after(rest_us + 1, self._relay.pump)
                return
            frames = self._relay.switch.poll_link(self._number, BATCH_BYTES, self._relay.now_us)
            if not frames:
                return
            self._batches += 1
            self._write(self.down, self._far.send([frame.data for frame in frames], self._batches))

    def _arrived_up(self, data: bytes) -> None:
        if self._over or not self._number:
            return
        relay = self._relay
        found = self._far.receive(data, relay.now_us)
        if found.receipts:
            relay.switch.link_receipted(self._number, len(found.receipts), relay.now_us)
        for batch in found.batches:
            relay.switch.link_packets(self._number, parse_frames(batch)[0], relay.now_us)
        if self._far.closed:
            self._die()
        due_us = self._far.next_timeout()
        if due_us is not None:
            self._clock.after(max(0, due_us - relay.now_us), self._receipt_down)
        relay.pump()

    def _receipt_down(self) -> None:
        if not self._over:
            self._write(self.down, self._far.handle_timeout(self._relay.now_us))

    def _write(self, pipe: Pipe, buffers: list[Buffer]) -> None:
        if buffers and not self._over:
            pipe.write(b"".join(buffers))

    # faults

    def _up_stalled_until(self) -> int:
        return max(self._stalled_until_us, self._window_end(K.BLACKHOLE_UP))

    def _down_stalled_until(self) -> int:
        return max(self._stalled_until_us, self._window_end(K.BLACKHOLE_DOWN))

    def _window_end(self, one_way: FaultKind) -> int:
        """The end of the present blackhole in this direction, 0 if there is none. A long one kills the connection."""
        now_us = self._clock.now_us
        for window in self._plan.windows:
            if window.kind in (K.BLACKHOLE, K.FLAPPING, one_way) and window.covers(self._node.index, now_us):
                end_us = window.gap_end_us(now_us)
                if end_us - now_us > DEAD_US and self.is_open:
                    self._clock.after(DEAD_US, self._die)
                return end_us
        return 0

    def _plan_fault(self) -> None:
        if self._plan.link_mean_us:
            self._clock.after(round(self._random.expovariate(1 / self._plan.link_mean_us)), self._fault)

    def _fault(self) -> None:
        if self._over or self._clock.now_us >= self._plan.end_us:
            return
        kind = pick(self._random, self._plan.link_kinds)
        if kind is K.LINK_FLIPPED:
            pipe = pick(self._random, (self.up, self.down))
            if not pipe.flip(between(self._random, 0, 1 << 20), between(self._random, 0, 7)):
                self._clock.after(self._shape.up_us + 1, self._fault)  # nothing was in flight: try again
                return
        self._strike(kind, self._node.index, 0, "")
        if kind is K.LINK_CUT:
            self._die()
            return
        if kind is K.LINK_STALLED:
            self._stalled_until_us = self._clock.now_us + log_between(self._random, SECOND // 10, STALL_US_MAX)
        self._plan_fault()
