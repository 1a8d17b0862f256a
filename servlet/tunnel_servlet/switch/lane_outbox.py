"""What a lane takes from the mailbox of its attachment, and what it owes to it."""

from tunnel.wire import Frame
from tunnel_servlet.switch.mailbox import Mailbox

__all__ = ["LaneOutbox"]


class LaneOutbox:
    """A lane's way into the mailbox. It accounts for what the lane holds: the lane does not say what was confirmed."""

    __slots__ = ("_cut", "_mailbox", "incoming_bytes", "taken")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.taken: list[Frame] = []
        self._cut = False  # what was taken last leaves in pieces
        self.incoming_bytes = 0  # of a packet that comes in pieces

    def take(self, limit_bytes: int) -> list[Frame]:
        """What leaves next. A lane takes again only when all that it took before was confirmed or put back."""
        self._confirmed()
        frames = self._mailbox.take(limit_bytes)
        self.taken = list(frames)
        self._cut = len(frames) == 1 and frames[0].size > limit_bytes
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """These did not arrive. They are always the last of what was taken."""
        del self.taken[len(self.taken) - len(frames) :]
        self._mailbox.put_back(frames)

    def waits(self) -> bool:
        """Whether there is anything to take."""
        return self._mailbox.waiting

    def applied(self, held_bytes: int) -> None:
        """The lane has applied a request, and not yet answered it: it holds `held_bytes`. All that it had taken and not
        put back was confirmed, unless that is one packet in pieces; the rest is a packet that comes in pieces."""
        if not self._cut:
            self._confirmed()
        self._count_incoming(max(0, held_bytes - sum(frame.size for frame in self.taken)))

    def close(self) -> None:
        """The lane is closed."""
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
