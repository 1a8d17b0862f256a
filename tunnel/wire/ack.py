"""The payload of ACK: which packets arrived, how much more fits, and which packet the ACK names as its cause.

Clauses 2.4, 4.3, 4.4 of docs/PROTOCOL.md.
"""

import struct

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.fields import pack
from tunnel.wire.sequence import is_before

__all__ = ["RANGES_MAX", "Ack", "decode_ack", "encode_ack"]

RANGES_MAX = 32  # 2.4

_FIXED = struct.Struct("!IIIIBBxx")  # cumulative, window, delay, cause, its attempt, count, zero
_RANGES = tuple(struct.Struct(f"!{2 * count}I") for count in range(RANGES_MAX + 1))


class Ack(msgspec.Struct, gc=False):
    """An acknowledgement. Sequence numbers are wire numbers (32 bits).

    Ranges include both ends, are ordered newest first, and lie above `cumulative`.
    """

    cumulative: int
    window: int  # bytes beyond `cumulative`
    delay_us: int
    echo_sequence: int  # of the cause (4.3)
    echo_attempt: int  # in which the cause came
    ranges: list[tuple[int, int]] = []


def encode_ack(ack: Ack) -> bytes:
    """Encode the payload of ACK (2.4). Raise ValueError if there are more than RANGES_MAX ranges."""
    ranges = ack.ranges
    count = len(ranges)
    if count > RANGES_MAX:
        raise ValueError(f"an ACK holds at most {RANGES_MAX} ranges, not {count}")
    fixed = pack(_FIXED, ack.cumulative, ack.window, ack.delay_us, ack.echo_sequence, ack.echo_attempt, count)
    if not count:
        return fixed
    return fixed + pack(_RANGES[count], *[number for pair in ranges for number in pair])


def decode_ack(data: Buffer) -> Ack | None:
    """Decode the payload of ACK. Return None if it is malformed.

    A payload with an inverted range, or with a range that is not above `cumulative`, is malformed too (4.4).
    """
    if len(data) < _FIXED.size:
        return None
    cumulative, window, delay_us, echo_sequence, echo_attempt, count = _FIXED.unpack_from(data)
    if count > RANGES_MAX or len(data) != _FIXED.size + 8 * count:
        return None
    numbers = _RANGES[count].unpack_from(data, _FIXED.size)
    ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    for first, last in ranges:
        if is_before(last, first) or not is_before(cumulative, first) or not is_before(cumulative, last):
            return None
    return Ack(cumulative, window, delay_us, echo_sequence, echo_attempt, ranges)
