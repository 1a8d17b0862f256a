"""Truncates a body and flips bits in it while it passes."""

from loadtests.faultproxy.faults import BodyPlan

__all__ = ["UNKNOWN_LENGTH_BITS", "Mangler"]

# In a body of unknown length, the place is drawn among its first 2**20 bytes. Each power of two is equally likely, so
# that short bodies are hit, too. A body that ends before the place stays unchanged.
UNKNOWN_LENGTH_BITS = 20


class Mangler:
    """Mangles one body. The caller feeds the pieces in order, and forwards the results until `ended`."""

    def __init__(self, plan: BodyPlan, length: int | None) -> None:
        """`length` is the length of the body, or None if it is not known."""
        self._offset = 0
        self._end = None if plan.cut_at is None or length == 0 else _place(plan.cut_at, length)
        # Two flips of the same bit would cancel each other.
        places = {(_place(place, length), bit): None for place, bit in plan.flips} if length != 0 else {}
        self._flips = sorted(places)
        self._is_short = plan.is_short
        self._flip_is_new = False
        self.planned_bits = len(self._flips)
        self.is_harmless = self._end is None and not self._flips
        self.length = self._end if self._end is not None and plan.is_short else length

    @property
    def ended(self) -> bool:
        """Whether the body was cut here: nothing after this point may be forwarded."""
        return self._end is not None and self._offset >= self._end

    @property
    def breaks(self) -> bool:
        """Whether the connection must break here."""
        return self.ended and not self._is_short

    @property
    def passed_bytes(self) -> int:
        """Number of bytes that feed() has returned so far."""
        return self._offset

    def take_first_flip(self) -> bool:
        """Return True once, after the first piece in which bits were flipped."""
        is_new, self._flip_is_new = self._flip_is_new, False
        return is_new

    def feed(self, piece: bytes) -> bytes:
        """Return the bytes to forward for this piece. It must not be empty, and `ended` must be false."""
        start, end = self._offset, self._offset + len(piece)
        if self._end is not None and end > self._end:
            end = self._end
            piece = piece[: end - start]
        self._offset = end
        if self._flips and self._flips[0][0] < end:
            self._flip_is_new = len(self._flips) == self.planned_bits
            piece = self._flip(piece, start)
        return piece

    def _flip(self, piece: bytes, start: int) -> bytes:
        flipped = bytearray(piece)
        while self._flips and self._flips[0][0] < start + len(piece):
            place, bit = self._flips.pop(0)
            flipped[place - start] ^= 1 << bit
        return bytes(flipped)


def _place(fraction: float, length: int | None) -> int:
    return int(2 ** (fraction * UNKNOWN_LENGTH_BITS)) - 1 if length is None else int(fraction * length)
