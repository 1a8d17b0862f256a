"""Sequence numbers: unbounded integers in memory, 32 bits with serial-number arithmetic on the wire (1.6, RFC 1982)."""

__all__ = ["MODULUS", "distance", "is_before", "unwrap", "wrap"]

MODULUS = 1 << 32  # 1.6: sequence numbers have 32 bits
_MASK = MODULUS - 1
_HALF = MODULUS >> 1


def wrap(number: int) -> int:
    """Return the 32 bits that stand for an unbounded number on the wire."""
    return number & _MASK


def unwrap(wire: int, near: int) -> int:
    """Return the number congruent to `wire` that is nearest to `near`. Of two equally near ones, return the higher."""
    ahead = (wire - near) & _MASK
    return near + ahead if ahead <= _HALF else near + ahead - MODULUS


def distance(a: int, b: int) -> int:
    """Return the signed distance from wire number `a` to wire number `b`, in [-2**31, 2**31)."""
    return ((b - a + _HALF) & _MASK) - _HALF


def is_before(a: int, b: int) -> bool:
    """Return whether wire number `a` precedes `b`. If they are 2**31 apart, neither does (RFC 1982 section 3.2)."""
    return 0 < ((b - a) & _MASK) < _HALF
