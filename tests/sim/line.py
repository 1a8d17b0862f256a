"""A TCP connection from an endpoint to the relay that carries a link: its bytes, its faults, and the relay's half."""

from __future__ import annotations

from random import Random
from typing import Protocol

from tests.sim.clock import SECOND, Alarm, Clock
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.path import PathShape, Strike
from tests.sim.pipe import Pipe
from tests.sim.randomness import between, log_between, pick
from tunnel.exchange import LinkInput, LinkState
from tunnel.wire import Buffer, parse_frames
from tunnel_servlet.switch.switch import Switch

__all__ = ["BATCH_BYTES", "DEAD_US", "NOTSENT_BYTES", "Line", "RelaySide"]

K = FaultKind
NOTSENT_BYTES = 128 * 1024  # as TCP_NOTSENT_LOWAT of real links: tunnel/carriers/halves/unsent_bytes.py
BATCH_BYTES = 64 * 1024
DEAD_US = 20 * SECOND  # TCP gives up on a dead path after this time
STALL_US_MAX = 10 * SECOND


class RelaySide(Protocol):
    """The relay, as a link sees it."""

    switch: Switch
    down_until_us: int

    @property
    def now_us(self) -> int: ...

    def link_opened(
        self, link: Line, user: str, attachment_id: bytes, epoch: int, generation: int, *, shares: bool = False
    ) -> int: ...

    def link_closed(self, number: int) -> None: ...

    def pump(self) -> None: ...


class Line:
    """Carries bytes both ways until it is over.

    A subclass is the endpoint's half: it opens the line, handles what comes down, and learns of the end.
    """

    def __init__(
        self,
        clock: Clock,
        shape: PathShape,
        plan: FaultPlan,
        random: Random,
        strike: Strike,
        relay: RelaySide,
        node: int,
    ) -> None:
        self.up = Pipe(clock, shape.up_us, shape.bytes_per_second, self._arrived_up, self._up_stalled_until)
        self.down = Pipe(clock, shape.down_us, shape.bytes_per_second, self._arrived_down, self._down_stalled_until)
        self.is_open = False  # as the node sees it
        self.shares = False
        self._clock = clock
        self._shape = shape
        self._plan = plan
        self._random = random
        self._strike = strike
        self._relay = relay
        self._index = node
        self._far = LinkState()
        self._number = 0  # the relay's number of this link; 0: the relay does not know it (any more)
        self._batches = 0
        self._full_alarm: Alarm | None = None  # when TCP takes more
        self._stalled_until_us = 0
        self._over = False

    # the endpoint's half

    def _arrived_down(self, data: bytes) -> None:
        raise NotImplementedError

    def _tell_node(self) -> None:
        """The endpoint learns that the connection has ended."""
        raise NotImplementedError

    # the end

    def _die(self) -> None:
        """The connection breaks: nothing in flight arrives, and each side learns of it in its own time."""
        if self._over:
            return
        self._over = True
        self.up.cut()
        self.down.cut()
        self._clock.after(self._shape.down_us, self._tell_node)
        self._clock.after(self._shape.up_us, self._tell_relay)

    def _tell_relay(self) -> None:
        if self._number:
            number, self._number = self._number, 0
            self._relay.link_closed(number)

    def cut_by_relay(self) -> None:
        """The relay has died or has ended the link, and needs no notification."""
        self._number = 0
        self._die()

    def cut_by_endpoint(self) -> None:
        """The endpoint has died; its next life ignores the notification."""
        self._die()

    # the relay's half

    def signalled(self) -> None:
        """Do nothing: `fill_down` of an attachment's only link fetches whatever waits."""

    def fill_down(self) -> None:
        """Write packets from the mailbox, as many as TCP takes."""
        while not self._over and self._number:
            backlog_bytes = self.down.backlog_bytes()
            if backlog_bytes >= NOTSENT_BYTES:
                if self._full_alarm is None or self._full_alarm.action is None:
                    rest_us = (backlog_bytes - NOTSENT_BYTES) * SECOND // self._shape.bytes_per_second
                    self._full_alarm = self._clock.after(rest_us + 1, self._relay.pump)
                return
            frames = self._relay.switch.poll_link(self._number, BATCH_BYTES, self._relay.now_us)
            if not frames:
                return
            self._batches += 1
            self._write(self.down, self._far.send([frame.data for frame in frames], self._batches))

    def _arrived_up(self, data: bytes) -> None:
        if not self._over and self._number:
            self._handle_up(self._far.receive(data, self._relay.now_us))

    def _handle_up(self, found: LinkInput) -> None:
        """The relay has read batches and receipts."""
        relay = self._relay
        if self._far.is_peer_leaving:
            relay.switch.link_left(self._number, relay.now_us)
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
            if window.kind in (K.BLACKHOLE, K.FLAPPING, one_way) and window.covers(self._index, now_us):
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
        self._strike(kind, self._index, 0, "")
        if kind is K.LINK_CUT:
            self._die()
            return
        if kind is K.LINK_STALLED:
            self._stalled_until_us = self._clock.now_us + log_between(self._random, SECOND // 10, STALL_US_MAX)
        self._plan_fault()
