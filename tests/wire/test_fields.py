"""The helpers of the payload codecs: invalid values of ours raise ValueError, those of a peer give None."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import junk
from tunnel.wire.fields import BYTE, SHORT, exact, pack, pack_text, unpack_text

prefixes = st.sampled_from([BYTE, SHORT])


@pytest.mark.parametrize("value", [-1, 2**16])
def test_pack_names_a_value_that_does_not_fit(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit its field"):
        pack(struct.Struct("!H"), value)


def test_pack_encodes_values_in_the_given_format() -> None:
    assert pack(struct.Struct("!HB"), 258, 3) == b"\x01\x02\x03"


def test_exact_accepts_only_the_exact_size() -> None:
    assert exact("a key", b"abcd", 4) == b"abcd"
    with pytest.raises(ValueError, match="a key must be 4 bytes, not 3"):
        exact("a key", b"abc", 4)


@given(st.text(max_size=60), prefixes, junk, junk)
def test_text_round_trips(text: str, prefix: struct.Struct, before: bytes, after: bytes) -> None:
    raw = pack_text(text, prefix)
    view = memoryview(before + raw + after)
    assert unpack_text(view, len(before), prefix) == (text, len(before) + len(raw))


@pytest.mark.parametrize(("prefix", "size"), [(BYTE, 255), (SHORT, 65535)])
def test_text_of_the_greatest_length_fits(prefix: struct.Struct, size: int) -> None:
    assert len(pack_text("x" * size, prefix)) == prefix.size + size
    with pytest.raises(ValueError, match="too long"):
        pack_text("x" * (size + 1), prefix)


@given(st.text(max_size=20), prefixes)
def test_text_cut_anywhere_is_none(text: str, prefix: struct.Struct) -> None:
    raw = pack_text(text, prefix)
    for cut in range(len(raw)):
        assert unpack_text(memoryview(raw)[:cut], 0, prefix) is None


@pytest.mark.parametrize("raw", [b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"ab\xff"])
def test_text_that_is_not_utf8_is_none(raw: bytes) -> None:
    assert unpack_text(memoryview(bytes([len(raw)]) + raw), 0, BYTE) is None


@given(junk, st.integers(0, 400), prefixes)
def test_unpacking_text_never_raises(data: bytes, offset: int, prefix: struct.Struct) -> None:
    found = unpack_text(memoryview(data), offset, prefix)
    assert found is None or found[1] <= len(data)
