"""A link that is open, and the batches on it that have no receipt yet."""

from tunnel.carriers.dialed_link import DialedLink
from tunnel.exchange import BatchDone, LinkPace
from tunnel.wire import Packet, PacketType, encode_packets

__all__ = ["OpenLink"]

_PROBE = -1  # the token of a batch that concerns no one but the link


class OpenLink:
    """A link on one road. Batches that were given up may still get receipts, which then yield no `BatchDone`."""

    def __init__(self, link: DialedLink, road: str) -> None:
        self.link = link
        self.road = road
        self.waiting_bytes = 0  # size of the batches that have no receipt and were not given up
        self.receipted_us = -1  # when the newest batch was sent that has a receipt and was not given up
        self._pace = LinkPace()
        self._unreceipted_bytes = 0
        self._given_up = 0  # number of batches that were given up and have no receipt yet

    @property
    def batch_bytes(self) -> int:
        """The size that batches should have at most."""
        return self._pace.batch_bytes

    def send(self, packets: list[Packet], token: int, now: int) -> int:
        """Send a batch; return its size."""
        self.link.send(encode_packets(packets), token)
        size = self.link.state.unreceipted_bytes - self._unreceipted_bytes
        self._unreceipted_bytes += size
        self.waiting_bytes += size
        self._pace.sent(size, now)
        return size

    def probe(self, now: int) -> None:
        """Send a batch without meaning (NOOP), of which the receipt shows that the path still passes data."""
        self.send([Packet(PacketType.NOOP, 0, 0, 0, b"")], _PROBE, now)

    def receipted(self, tokens: list[int], now: int) -> tuple[list[BatchDone], int]:
        """Take receipts; return the batches that are done by them, and the number of receipted bytes."""
        size = self._unreceipted_bytes - self.link.state.unreceipted_bytes
        self._unreceipted_bytes -= size
        done: list[BatchDone] = []
        for token in tokens:
            if self._given_up:
                self._given_up -= 1
            else:
                self.receipted_us = self._pace.receipted(now)
                if token != _PROBE:
                    done.append(BatchDone(token, ok=True))
        if not self._given_up:
            self.waiting_bytes = self._unreceipted_bytes
        return done, size

    def give_up(self) -> list[BatchDone]:
        """Give up the batches without a receipt, so that they are sent another way."""
        unreceipted = self.link.state.unreceipted
        done = [BatchDone(token, ok=False) for token in unreceipted[self._given_up :] if token != _PROBE]
        self._given_up = len(unreceipted)
        self.waiting_bytes = 0
        self._pace.forget()
        return done
