"""The streamed answers of one attachment that are open, or whose packets are not all confirmed (PROTOCOL 7.20)."""

from tunnel.exchange import PathWindow, ServedLane
from tunnel_servlet.switch.deadlines import Deadline

__all__ = ["OpenStreams"]


class OpenStreams:
    """The lanes with streams, in the order in which the streams were opened: at most one stream on each lane."""

    __slots__ = ("carrier", "deadline", "lanes", "window")

    def __init__(self) -> None:
        self.lanes: list[ServedLane] = []
        self.carrier: ServedLane | None = None
        """The lane whose stream carries all packets of the attachment, if there is one."""
        self.window = PathWindow()  # of all of them: it outlives each
        self.deadline: Deadline  # set by `streaming`

    def on_opened(self, lane: ServedLane) -> None:
        """Note that a stream was opened on the lane."""
        if lane in self.lanes:
            self.lanes.remove(lane)
        self.lanes.append(lane)
        self.refresh()

    def refresh(self) -> None:
        """Find the carrier again, and forget lanes whose streams are over. Call this after each step of a lane."""
        if self.lanes:
            self.lanes = [lane for lane in self.lanes if lane.stream_due_us is not None]
        self.carrier = next((lane for lane in reversed(self.lanes) if lane.carries), None)

    def due_us(self) -> int | None:
        """Return when the first of the lanes must be looked at, or None."""
        return min((due_us for lane in self.lanes if (due_us := lane.stream_due_us) is not None), default=None)
