"""Memory limits for stored packets, counted at each level: mailbox, user and process (PROTOCOL 9.2)."""

from collections.abc import Iterable, Iterator

from tunnel.wire import Frame, PacketType
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES

__all__ = ["Budget", "charge", "charge_all", "keep"]

_NOTICES = frozenset((int(PacketType.DROPPED), int(PacketType.EDGE)))

# A packet that is a slice of a body keeps the whole body alive. A packet smaller than a sixteenth of its body is copied
# (a full batch comes in eighths, 4.13). Once an eighth of the mailbox is in use, a packet smaller than half of its body
# is copied, too. The memory in use is thus at most four times the hard limit.
_SLICE, _SLICE_UNDER_PRESSURE, _PRESSURE = 16, 2, 8


class Budget:
    """The budget of one level. Bytes counted here are also counted at every level above.

    A budget has two accounts. `held` is real memory and never exceeds `hard_bytes`. `reserved`, `beyond` and
    `outstanding` count promised bytes, and bytes in use beyond the promises; limits are set so that their sum stays
    within `pool_bytes`, which 9.2 calls the *room* of the queues.
    """

    __slots__ = ("beyond", "hard_bytes", "held", "outstanding", "parent", "pool_bytes", "reserved")

    def __init__(self, hard_bytes: int, pool_bytes: int, parent: "Budget | None" = None) -> None:
        if not 0 < pool_bytes <= hard_bytes:
            raise ValueError(f"a pool of {pool_bytes} bytes must be above 0 and at most the hard limit of {hard_bytes}")
        self.hard_bytes = hard_bytes
        self.pool_bytes = pool_bytes
        self.parent = parent
        self.reserved = 0  # promised to routes, used or not
        self.beyond = 0  # payload in queues beyond their reservations
        self.outstanding = 0  # taken but not yet confirmed: it may be put back
        self.held = 0  # waiting, outstanding, or pieces of incoming packets; overhead included

    def levels(self) -> "Iterator[Budget]":
        """Iterate over this level and those above it."""
        level: Budget | None = self
        while level is not None:
            yield level
            level = level.parent

    def free(self) -> int:
        """Return the bytes that every level still has free; negative if more was put back than a pool has room for."""
        free = self.pool_bytes - self.reserved - self.beyond - self.outstanding
        level = self.parent
        while level is not None:
            free = min(free, level.pool_bytes - level.reserved - level.beyond - level.outstanding)
            level = level.parent
        return free

    def reserve(self, size: int) -> bool:
        """Promise `size` bytes at every level. Return False, and promise nothing, if a level has no room."""
        level: Budget | None = self
        while level is not None:
            if level.reserved + size > level.pool_bytes:
                return False
            level = level.parent
        self.unreserve(-size)
        return True

    def unreserved_bytes(self) -> int:
        """Return the bytes that can still be promised."""
        return min(level.pool_bytes - level.reserved for level in self.levels())

    def unreserve(self, size: int) -> None:
        """Withdraw a promise of `size` bytes."""
        level: Budget | None = self
        while level is not None:
            level.reserved -= size
            level = level.parent

    def admits(self, size: int) -> bool:
        """Whether every level can hold `size` bytes more."""
        level: Budget | None = self
        while level is not None:
            if level.held + size > level.hard_bytes:
                return False
            level = level.parent
        return True

    def hold(self, size: int) -> None:
        """Count `size` bytes as held. The caller must have checked `admits`."""
        level: Budget | None = self
        while level is not None:
            level.held += size
            level = level.parent

    def release(self, size: int) -> None:
        """Stop counting `size` bytes as held."""
        self.hold(-size)

    def exceed(self, size: int) -> None:
        """Count `size` bytes of the pool as used; a negative size gives them back."""
        level: Budget | None = self
        while level is not None:
            level.beyond += size
            level = level.parent

    def settle(self, size: int) -> None:
        """Stop counting `size` outstanding bytes, because they have arrived."""
        level: Budget | None = self
        while level is not None:
            level.outstanding -= size
            level.held -= size
            level = level.parent

    def close(self) -> None:
        """Remove everything counted here from all levels. The caller must not use this budget afterwards."""
        reserved, beyond, outstanding, held = self.reserved, self.beyond, self.outstanding, self.held
        for level in self.levels():
            level.reserved -= reserved
            level.beyond -= beyond
            level.outstanding -= outstanding
            level.held -= held

    def let_go(self, size: int) -> None:
        """Count `size` held bytes as outstanding, because they left a queue; a negative size reverses that."""
        level: Budget | None = self
        while level is not None:
            level.outstanding += size
            level = level.parent


def charge(frame: Frame) -> int:
    """Return the bytes that a stored packet counts for. The relay's own notices count for nothing, because routes and
    `notices_max` limit their number."""
    return 0 if frame.type in _NOTICES else len(frame.data) + FRAME_OVERHEAD_BYTES


def charge_all(frames: Iterable[Frame]) -> int:
    """Return the bytes that stored packets count for together."""
    size = 0
    for frame in frames:
        if frame.type not in _NOTICES:
            size += len(frame.data) + FRAME_OVERHEAD_BYTES
    return size


def keep(frame: Frame, budget: Budget) -> None:
    """Prepare a packet for storage: copy it if it would keep a much larger body alive."""
    data = frame.data
    if isinstance(data, memoryview):
        part = _SLICE if budget.held * _PRESSURE < budget.hard_bytes else _SLICE_UNDER_PRESSURE
        if len(data) * part < memoryview(data.obj).nbytes:
            frame.data = bytes(data)
