"""Clauses 2.4 and 4.4: ACK."""

import pytest
from hypothesis import given

from tests.wire.strategies import acks, junk
from tunnel.wire.ack import RANGES_MAX, Ack, decode_ack, encode_ack

TOP = 2**32 - 1
WRAPPING = Ack(TOP - 1, 65536, 25_000, 5, 255, [(4, 5), (0, 2)])


@given(acks)
def test_acks_round_trip(ack: Ack) -> None:
    assert decode_ack(encode_ack(ack)) == ack


@given(junk)
def test_decoding_never_raises_and_is_stable(data: bytes) -> None:
    ack = decode_ack(data)
    if ack is not None:
        assert decode_ack(encode_ack(ack)) == ack


def test_the_layout_is_that_of_the_protocol() -> None:
    assert encode_ack(WRAPPING) == bytes.fromhex(
        "fffffffe 00010000 000061a8 00000005 ff 02 0000 00000004 00000005 00000000 00000002"
    )


def test_an_ack_that_is_cut_or_lengthened_is_malformed() -> None:
    raw = encode_ack(WRAPPING)
    for cut in range(len(raw)):
        assert decode_ack(raw[:cut]) is None
    assert decode_ack(raw + b"\0") is None
    assert decode_ack(raw + bytes(8)) is None


def test_the_zero_field_is_ignored() -> None:
    raw = encode_ack(WRAPPING)
    assert decode_ack(raw[:18] + b"\xff\xff" + raw[20:]) == WRAPPING


def test_an_ack_has_at_most_32_ranges() -> None:
    ranges = [(2 * number, 2 * number) for number in range(1, RANGES_MAX + 1)]
    raw = encode_ack(Ack(0, 0, 0, 1, 0, ranges))
    assert decode_ack(raw) == Ack(0, 0, 0, 1, 0, ranges)
    assert decode_ack(raw[:17] + b"\x21" + raw[18:] + bytes([0, 0, 1, 0, 0, 0, 1, 0])) is None
    with pytest.raises(ValueError, match="at most 32 ranges, not 33"):
        encode_ack(Ack(0, 0, 0, 1, 0, [*ranges, (100, 100)]))


@pytest.mark.parametrize(
    ("cumulative", "span"),
    [
        (10, (13, 12)),  # inverted
        (TOP, (1, TOP)),  # inverted across the wrap
        (10, (10, 12)),  # not above the cumulative sequence
        (10, (8, 9)),
        (10, (8, 12)),
        (10, (10 + 2**31 - 1, 10 + 2**31)),  # its end is half the circle of numbers away: neither before nor after
    ],
)
def test_impossible_ranges_make_an_ack_malformed(cumulative: int, span: tuple[int, int]) -> None:  # 4.4
    assert decode_ack(encode_ack(Ack(cumulative, 0, 0, 1, 0, [(cumulative + 2 & TOP,) * 2, span]))) is None


@pytest.mark.parametrize(
    "ack",
    [
        Ack(2**32, 0, 0, 0, 0),
        Ack(0, -1, 0, 0, 0),
        Ack(0, 0, 2**32, 0, 0),
        Ack(0, 0, 0, 0, 256),
        Ack(0, 0, 0, 0, 0, [(1, 2**32)]),
    ],
)
def test_values_that_do_not_fit_raise(ack: Ack) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_ack(ack)


def test_the_default_ranges_are_not_shared() -> None:
    Ack(0, 0, 0, 0, 0).ranges.append((1, 1))
    assert Ack(0, 0, 0, 0, 0).ranges == []
