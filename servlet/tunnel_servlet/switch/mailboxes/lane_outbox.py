"""A lane's access to the mailbox of its attachment."""

from tunnel.exchange.served.outbox import PACKETS_ANY
from tunnel.wire import Frame
from tunnel_servlet.switch.mailboxes.mailbox import Mailbox
from tunnel_servlet.switch.mailboxes.open_streams import OpenStreams

__all__ = ["LaneOutbox"]


class LaneOutbox:
    """Takes packets from the mailbox for one lane, and accounts for them until they are confirmed or put back.

    While a streamed answer carries the packets, they wait for its lane only.
    """

    __slots__ = ("_lane", "_mailbox", "_streams", "incoming_bytes", "taken")

    def __init__(self, lane: int, mailbox: Mailbox, streams: OpenStreams) -> None:
        self._lane = lane
        self._mailbox = mailbox
        self._streams = streams
        self.taken: list[Frame] = []
        self.incoming_bytes = 0  # of a packet that arrives in pieces

    def take(self, limit_bytes: int, packets_max: int = PACKETS_ANY) -> list[Frame]:
        """Take the packets that leave next, at most `packets_max`."""
        if not self.waits():
            return []
        frames = self._mailbox.take(limit_bytes, packets_max)
        self.taken += frames
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """Return packets that did not arrive. They must be the last of those taken."""
        del self.taken[len(self.taken) - len(frames) :]
        self._mailbox.put_back(frames)

    def on_confirmed(self, frames: list[Frame]) -> None:
        """Release packets that have arrived. They must be the first of those taken."""
        del self.taken[: len(frames)]
        self._mailbox.release_taken(frames)

    def waits(self) -> bool:
        """Whether any packet waits for this lane."""
        mailbox = self._mailbox
        if not (mailbox.parcel or mailbox.waiting):
            return False
        carrier = self._streams.carrier
        return carrier is None or carrier.lane == self._lane

    def count_incoming(self, size: int) -> None:
        """Count the bytes that the lane holds of a packet that arrives in pieces."""
        if size != self.incoming_bytes:
            self._mailbox.budget.hold(size - self.incoming_bytes)
            self.incoming_bytes = size
