"""Clause 8.1: the link header."""

import pytest
from hypothesis import given

from tests.wire.strategies import junk, link_headers
from tunnel.wire.checksum import checksum
from tunnel.wire.link_header import LINK_HEADER_SIZE, LinkHeader, decode_link_header, encode_link_header

HEADER = LinkHeader(7, 2**32 - 1, 65536)
RAW = encode_link_header(HEADER)


@given(link_headers, junk)
def test_a_header_round_trips_whatever_follows(header: LinkHeader, behind: bytes) -> None:
    raw = encode_link_header(header)
    assert len(raw) == LINK_HEADER_SIZE
    assert decode_link_header(raw + behind) == header


@given(junk)
def test_junk_is_none(data: bytes) -> None:
    assert decode_link_header(data) is None
    assert decode_link_header(b"TLNK" + data) is None


def test_the_layout_is_that_of_the_protocol() -> None:
    fields = bytes.fromhex("544c4e4b 00000007 ffffffff 00010000 00000000")
    assert fields + checksum(fields, bytes(4)).to_bytes(4, "big") == RAW


def test_a_header_cut_anywhere_is_none() -> None:
    for cut in range(LINK_HEADER_SIZE):
        assert decode_link_header(RAW[:cut]) is None


def test_no_bit_flip_is_accepted() -> None:
    for bit in range(8 * LINK_HEADER_SIZE):
        damaged = bytearray(RAW)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_link_header(damaged) is None


def test_another_magic_is_none_even_with_its_checksum() -> None:
    fields = b"TLNX" + RAW[4:20]
    assert decode_link_header(fields + checksum(fields, bytes(4)).to_bytes(4, "big")) is None


def test_flags_without_a_meaning_are_ignored() -> None:
    fields = RAW[:16] + bytes.fromhex("fffffffe")
    assert decode_link_header(fields + checksum(fields, bytes(4)).to_bytes(4, "big")) == HEADER


def test_bit_0_of_the_flags_says_that_the_sender_leaves_the_link() -> None:
    fields = RAW[:16] + bytes.fromhex("00000001")
    leaving = encode_link_header(LinkHeader(7, 2**32 - 1, 65536, is_leaving=True))
    assert fields + checksum(fields, bytes(4)).to_bytes(4, "big") == leaving


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_does_not_fit_raises(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_link_header(LinkHeader(number, 0, 0))
