"""Sequence numbers: unbounded integers inside, 32 bits with serial-number arithmetic on the wire (1.6, RFC 1982)."""

__all__ = ["MODULUS", "distance", "is_before", "unwrap", "wrap"]

MODULUS = 1 << 32  # 1.6: sequence numbers have 32 bits
_MASK = MODULUS - 1
_HALF = MODULUS >> 1


def wrap(number: int) -> int:
    """The wire form of an unbounded number."""
    return number & _MASK


def unwrap(wire: int, near: int) -> int:
    """The number congruent to `wire` that is nearest to `near`; of two equally near, the higher."""
    ahead = (wire - near) & _MASK
    return near + ahead if ahead <= _HALF else near + ahead - MODULUS


def distance(a: int, b: int) -> int:
    """The signed step from wire number `a` to wire number `b`, in [-2**31, 2**31)."""
    return ((b - a + _HALF) & _MASK) - _HALF


def is_before(a: int, b: int) -> bool:
    """Whether wire number `a` precedes `b`. Half the circle apart neither does (RFC 1982 section 3.2)."""
    return 0 < ((b - a) & _MASK) < _HALF
