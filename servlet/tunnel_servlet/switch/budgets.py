"""Bytes that may be kept, counted at each level (mailbox, user, process) that has to answer for them (9.2)."""

from collections.abc import Iterator

from tunnel.wire import Frame, PacketType
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES

__all__ = ["Budget", "charge", "keep"]

_NOTICES = frozenset((int(PacketType.DROPPED), int(PacketType.EDGE)))

# A packet that is a slice of a body keeps the whole body alive. Packets that are less than a sixteenth of theirs are
# copied (a full batch comes in eighths, 4.13), and less than half of it once an eighth of the mailbox is in use: what
# is really kept is at most four times what is counted.
_SLICE, _SLICE_UNDER_PRESSURE, _PRESSURE = 16, 2, 8


class Budget:
    """One level. What is counted here is counted at every level above.

    Two accounts: `held` is real memory and never passes `hard_bytes`. `reserved`, `beyond` and `outstanding` are what
    was promised or is used besides a promise; shares of the pool are cut so that they stay within `pool_bytes`.
    """

    __slots__ = ("beyond", "hard_bytes", "held", "outstanding", "parent", "pool_bytes", "reserved")

    def __init__(self, hard_bytes: int, pool_bytes: int, parent: "Budget | None" = None) -> None:
        if not 0 < pool_bytes <= hard_bytes:
            raise ValueError(f"a pool of {pool_bytes} bytes does not lie within {hard_bytes}")
        self.hard_bytes = hard_bytes
        self.pool_bytes = pool_bytes
        self.parent = parent
        self.reserved = 0  # promised to routes, used or not
        self.beyond = 0  # payload in queues beyond what was promised to them
        self.outstanding = 0  # taken, but not yet confirmed: it may come back
        self.held = 0  # in queues or outstanding, with the cost of keeping it

    def levels(self) -> "Iterator[Budget]":
        """This level and those above."""
        level: Budget | None = self
        while level is not None:
            yield level
            level = level.parent

    def free(self) -> int:
        """What no level has committed yet; negative when more came back than a pool holds."""
        free = self.pool_bytes - self.reserved - self.beyond - self.outstanding
        level = self.parent
        while level is not None:
            free = min(free, level.pool_bytes - level.reserved - level.beyond - level.outstanding)
            level = level.parent
        return free

    def reserve(self, size: int) -> bool:
        """Promise `size` bytes at every level, or at none."""
        if any(level.reserved + size > level.pool_bytes for level in self.levels()):
            return False
        self.unreserve(-size)
        return True

    def unreserve(self, size: int) -> None:
        """Take a promise back."""
        for level in self.levels():
            level.reserved -= size

    def admits(self, size: int) -> bool:
        """Whether every level can hold `size` bytes more."""
        level: Budget | None = self
        while level is not None:
            if level.held + size > level.hard_bytes:
                return False
            level = level.parent
        return True

    def hold(self, size: int) -> None:
        """Count `size` bytes as kept; the caller has asked `admits`."""
        level: Budget | None = self
        while level is not None:
            level.held += size
            level = level.parent

    def release(self, size: int) -> None:
        """They are kept no more."""
        self.hold(-size)

    def exceed(self, size: int) -> None:
        """Count `size` bytes (negative: fewer) of the pool as used."""
        level: Budget | None = self
        while level is not None:
            level.beyond += size
            level = level.parent

    def close(self) -> None:
        """Take everything that is counted here out of the levels above: this one is used no more."""
        reserved, beyond, outstanding, held = self.reserved, self.beyond, self.outstanding, self.held
        for level in self.levels():
            level.reserved -= reserved
            level.beyond -= beyond
            level.outstanding -= outstanding
            level.held -= held

    def let_go(self, size: int) -> None:
        """What is held left a queue and may come back (negative: came back)."""
        level: Budget | None = self
        while level is not None:
            level.outstanding += size
            level = level.parent


def charge(frame: Frame) -> int:
    """What keeping the packet is counted as. The relay's own notices are bounded by the routes and cost nothing."""
    return 0 if frame.type in _NOTICES else len(frame.data) + FRAME_OVERHEAD_BYTES


def keep(frame: Frame, budget: Budget) -> None:
    """Prepare a packet for being kept: let go of the body around it, if that is much larger."""
    data = frame.data
    if isinstance(data, memoryview):
        part = _SLICE if budget.held * _PRESSURE < budget.hard_bytes else _SLICE_UNDER_PRESSURE
        if len(data) * part < memoryview(data.obj).nbytes:
            frame.data = bytes(data)
