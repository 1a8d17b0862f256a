"""A link that is open, and the batches on it that have no receipt yet."""

from collections import deque

from tunnel.carriers.links.dialed_link import DialedLink
from tunnel.exchange import BatchDone, Line, LinkPace, PathWindow
from tunnel.wire import Packet, PacketType, encode_packets

__all__ = ["OpenLink"]

_PROBE = -1  # the token of a batch that concerns no one but the link


class OpenLink:
    """A link on one road. Batches that were given up may still get receipts, which then yield no `BatchDone`.

    `line` says how much may leave on it, if it shares the load with other links; None: it carries alone, or is a spare.
    """

    def __init__(self, link: DialedLink, road: str) -> None:
        self.link = link
        self.road = road
        self.receipted_us = -1  # when the newest batch was sent that has a receipt and was not given up
        self.pace = LinkPace()  # chooses the size that batches should have at most
        self.line = Line() if link.shares else None
        self._window = PathWindow()  # how much may leave on a link that carries alone
        self._unreceipted_bytes = 0
        self._kept_bytes = 0  # of these, those of batches that were not given up
        self._given_up: deque[int] = deque()  # when each batch left that was given up and has no receipt yet

    @property
    def room(self) -> int:
        """How many bytes the next batch may have; 0: none may leave now."""
        if not self.link.is_writable:
            return 0
        if self.line is not None:
            return min(self.pace.batch_bytes, self.line.room(self._unreceipted_bytes))
        return self.pace.batch_bytes if self._window.allows(self._unreceipted_bytes) else 0

    @property
    def waiting_bytes(self) -> int:
        """Size of the batches that have no receipt and were not given up. On a link that carries alone, the others
        count as well while the window is full: nothing leaves before their receipts, so these must not stay away."""
        if self.line is None and self._unreceipted_bytes >= self._window.window_bytes:
            return self._unreceipted_bytes
        return self._kept_bytes

    @property
    def load(self) -> int:
        """The measure by which links that share the load are compared."""
        return Line.load(self._unreceipted_bytes)

    @property
    def is_stalled(self) -> bool:
        """Whether nothing leaves on this link, because no receipts come."""
        return self.line is not None and self.line.is_stalled

    def send(self, packets: list[Packet], token: int, now: int) -> int:
        """Send a batch; return its size."""
        self.link.send(encode_packets(packets), token)
        size = self.link.state.unreceipted_bytes - self._unreceipted_bytes
        self._unreceipted_bytes += size
        self._kept_bytes += size
        self.pace.on_sent(size, now)
        if self.line is not None:
            self.line.on_sent(now)
        return size

    def leave(self) -> None:
        """Let the relay send on the other links that share the load with this one, because it will be closed soon. A
        link that carries alone needs no such word: the relay follows the endpoint to the next one (8.0)."""
        if self.line is not None:
            self.link.leave()

    def probe(self, now: int) -> None:
        """Send a batch without meaning (NOOP), of which the receipt shows that the path still passes data."""
        self.send([Packet(PacketType.NOOP, 0, 0, 0, b"")], _PROBE, now)

    def take_receipts(self, tokens: list[int], now: int) -> tuple[list[BatchDone], int]:
        """Take receipts; return the batches that are done by them, and the number of receipted bytes."""
        size = self._unreceipted_bytes - self.link.state.unreceipted_bytes
        self._unreceipted_bytes -= size
        done: list[BatchDone] = []
        first_us, sent_us = -1, now
        for token in tokens:
            if self._given_up:
                sent_us = self._given_up.popleft()
            else:
                self.receipted_us = sent_us = self.pace.on_receipted(now)
                if token != _PROBE:
                    done.append(BatchDone(token, ok=True))
            if first_us < 0:
                first_us = sent_us
        left_bytes = self._unreceipted_bytes
        if tokens and self.line is None:
            self._window.on_receipted(size, first_us, sent_us, now, waits=left_bytes > 0)
        elif tokens and self.line is not None:
            self.line.on_receipted(size, first_us, sent_us, now, waits=self.pace.waits, left_bytes=left_bytes)
        if not self._given_up:
            self._kept_bytes = self._unreceipted_bytes
        return done, size

    def stall(self, now: int) -> list[BatchDone]:
        """Give up the batches without a receipt, and send nothing until one comes."""
        if self.line is not None:
            self.line.stall(now)
        return self.give_up()

    def give_up(self) -> list[BatchDone]:
        """Give up the batches without a receipt, so that they are sent another way."""
        unreceipted = self.link.state.tokens_unreceipted
        done = [BatchDone(token, ok=False) for token in unreceipted[len(self._given_up) :] if token != _PROBE]
        self._given_up += self.pace.forget()
        self._kept_bytes = 0
        return done
