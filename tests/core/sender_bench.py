"""A sender alone, with a clock and a peer whose acknowledgements the test writes."""

from tunnel.core.constants import SECOND_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import NO_EDGE, Segment, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import TimerTable
from tunnel.wire import Ack, wrap

__all__ = ["BIG", "FIRST", "MS", "RTT_US", "Bench"]

FIRST = 2**32 - 3  # the wire's numbers wrap soon
BIG = 1 << 30
MS = 1_000
RTT_US = 100 * MS


class Bench:
    """A sender with a clock. Numbers count from its first packet."""

    def __init__(self, *, lanes: int = 1, peer_edge: int = BIG) -> None:
        self.now = SECOND_US
        self.timers = TimerTable()
        self.stats = ConnectionStats()
        self.window = SendWindow(FIRST, BIG, peer_edge)
        self.sender = Sender(self.window, self.timers, self.stats, CarrierView(lanes=lanes))
        self.sender.resume(NO_EDGE, self.now)

    def send(self, *sizes: int, receipted: bool = True) -> list[Segment]:
        """Carry new segments, and receipt them as one batch."""
        segments = []
        for size in sizes:
            self.sender.write(bytes(size), self.now)
            segments.append(self.carry())
        if receipted:
            self.receipt(*segments)
        return segments

    def carry(self) -> Segment:
        segment = self.sender.take(BIG, self.now)
        assert segment is not None
        return segment

    def receipt(self, *segments: Segment) -> None:
        for segment in segments:
            self.sender.on_receipted(segment, segment.attempt, self.now)
        self.sender.arm_after_receipts()

    def ack(
        self,
        cumulative: int,
        *ranges: tuple[int, int],
        echo: int | None = None,
        attempt: int = 0,
        delay_us: int = 0,
        window: int = BIG,
    ) -> list[Segment] | None:
        pairs = [(wrap(FIRST + first), wrap(FIRST + last)) for first, last in ranges]
        cause = cumulative if echo is None else echo
        message = Ack(wrap(FIRST + cumulative), window, delay_us, wrap(FIRST + cause), attempt, pairs)
        return self.sender.acknowledge(message, self.now)

    def fire(self) -> int:
        """Let time pass to the next timer, handle it, and return how long that took."""
        before, self.now = self.now, self.timers.next()
        while self.timers.next() <= self.now:
            self.sender.handle_timers(self.now)
        return self.now - before

    def measured(self) -> "Bench":
        """Take one RTT sample of 100 ms; nothing is in flight afterwards."""
        self.send(1)
        self.now += RTT_US
        self.ack(self.number - 1)
        return self

    @property
    def number(self) -> int:
        return self.window.next_sequence - FIRST
