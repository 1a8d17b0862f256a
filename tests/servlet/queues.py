"""Queues and mailboxes without a switch around them."""

from __future__ import annotations

from tests.servlet.support import SETTINGS
from tunnel.wire import Frame, Packet, frame_of, parse_packets
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.deadlines import Deadlines
from tunnel_servlet.switch.mailboxes.budgets import Budget
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox
from tunnel_servlet.switch.mailboxes.queues import RouteQueue
from tunnel_servlet.switch.mailboxes.rate_turns import Pacing
from tunnel_servlet.switch.stats import Counters

__all__ = [
    "KIB",
    "Box",
    "packets",
    "put",
    "put_control",
    "sequences",
]

KIB = 1 << 10


class Box:
    """A mailbox with its budget. `calls`: how often it has called `wake`."""

    def __init__(self, *, bytes_max: int = 1 << 20, **settings: int) -> None:
        self.config = SwitchConfig(**{**SETTINGS, "reserved_bytes": 4 * KIB, **settings})
        self.counters = Counters()
        self.budget = Budget(bytes_max, self.config.pool_bytes(bytes_max))
        self.calls = 0
        self.pacing = Pacing(Deadlines())
        self.mailbox = Mailbox(self.budget, self.config, self.counters, self.pacing, self._call)
        # The other end for queues without a pair: notices about their packets go there.
        self._elsewhere = Mailbox(Budget(1 << 30, 1 << 30), self.config, Counters(), self.pacing, lambda: None)

    def _call(self) -> None:
        self.calls += 1

    def queue(self, own_id: int, *, start: int = 100) -> RouteQueue:
        """Open a queue and return it. The sequence numbers of its stream begin after `start`."""
        queue = self.mailbox.open(own_id)
        assert queue is not None
        back = self._elsewhere.open(own_id)
        assert back is not None
        queue.back = back
        queue.ledger.start_at(start)
        self.mailbox.adopt(queue, own_id)
        return queue

    def pair(self, own_id: int, back: Box, back_id: int) -> tuple[RouteQueue, RouteQueue]:
        """Open both directions of a route: return the queue in this mailbox, and the queue in the other."""
        here, there = self.queue(own_id), back.queue(back_id)
        here.back, there.back = there, here
        return here, there

    def take(self, limit: int = 1 << 20) -> list[Packet]:
        """Take the packets that leave next, and confirm them at once."""
        frames = self.mailbox.take(limit)
        self.mailbox.release_taken(frames)
        return packets(frames)


def packets(frames: list[Frame]) -> list[Packet]:
    parsed, discarded = parse_packets(b"".join(frame.data for frame in frames))
    assert discarded is None
    return parsed


def put(box: Box, queue: RouteQueue, *found: Packet) -> list[bool]:
    return [box.mailbox.put(queue, frame_of(packet)) for packet in found]


def put_control(box: Box, queue: RouteQueue, *found: Packet) -> list[bool]:
    return [box.mailbox.put_control(queue, frame_of(packet)) for packet in found]


def sequences(found: list[Packet]) -> list[int]:
    return [packet.sequence for packet in found]
