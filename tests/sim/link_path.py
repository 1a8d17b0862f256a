"""A link: one upgraded TCP connection between a node and the relay, with both of its halves and its own faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.sim.clock import SECOND, Clock
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.line import BATCH_BYTES, DEAD_US, NOTSENT_BYTES, Line, RelaySide
from tests.sim.path import PathShape, Strike
from tunnel.exchange import Lanes, LinkState
from tunnel.wire import Packet, encode_packets, parse_packets

__all__ = ["LinkPath"]

K = FaultKind


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


class LinkPath(Line):
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
        super().__init__(clock, shape, plan, random, strike, relay, node.index)
        self._node = node
        self._near = LinkState()

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
        user, own = self._node.user, lanes.registration
        self._number = self._relay.link_opened(self, user, own.id, own.epoch, own.generation)
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

    def _tell_node(self) -> None:
        self.is_open = False
        self._node.link_lost(self, self._near.tokens_unreceipted)

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
        """Wake the node when the backlog has drained, because it may then send again."""
        if self.up.backlog_bytes() >= NOTSENT_BYTES:
            rest_us = (self.up.backlog_bytes() - NOTSENT_BYTES) * SECOND // self._shape.bytes_per_second
            self._node.later(rest_us + 1, lambda: None)
