"""A lane's access to the mailbox of its attachment."""

from tunnel.wire import Frame
from tunnel_servlet.switch.mailbox import Mailbox

__all__ = ["LaneOutbox"]


class LaneOutbox:
    """Takes packets from the mailbox for one lane, and tracks which were confirmed: the lane does not report that."""

    __slots__ = ("_cut", "_mailbox", "incoming_bytes", "taken")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.taken: list[Frame] = []
        self._cut = False  # the packet that was taken last leaves in pieces
        self.incoming_bytes = 0  # of a packet that arrives in pieces

    def take(self, limit_bytes: int) -> list[Frame]:
        """Take the packets that leave next. The lane must call this only after all packets that it took before were
        confirmed or put back."""
        self._confirmed()
        frames = self._mailbox.take(limit_bytes)
        self.taken = list(frames)
        self._cut = len(frames) == 1 and frames[0].size > limit_bytes
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """Return packets that did not arrive. They must be the last of those taken."""
        del self.taken[len(self.taken) - len(frames) :]
        self._mailbox.put_back(frames)

    def waits(self) -> bool:
        """Whether any packet waits."""
        return self._mailbox.waiting

    def applied(self, held_bytes: int) -> None:
        """Note that the lane has applied a request and has not yet answered it.

        Everything that it had taken and not put back is confirmed, unless that is one packet that leaves in pieces.
        `held_bytes` is what the lane still keeps: that packet, and the part of a packet that arrives in pieces.
        """
        if not self._cut:
            self._confirmed()
        self._count_incoming(max(0, held_bytes - sum(frame.size for frame in self.taken)))

    def close(self) -> None:
        """Confirm everything that was taken and not put back, because the lane is closed."""
        self._confirmed()
        self._count_incoming(0)

    def _confirmed(self) -> None:
        if self.taken:
            self._mailbox.confirmed(self.taken)
            self.taken = []
        self._cut = False

    def _count_incoming(self, size: int) -> None:
        if size != self.incoming_bytes:
            self._mailbox.budget.hold(size - self.incoming_bytes)
            self.incoming_bytes = size
