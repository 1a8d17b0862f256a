"""CRC-32C against published values, and over several parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.wire.checksum import checksum


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"123456789", 0xE3069283),  # the check value of CRC-32C in the catalogue of parametrised CRCs
        (bytes(32), 0x8A9136AA),  # RFC 3720 section B.4, here and below
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_values_are_reproduced(data: bytes, value: int) -> None:
    assert checksum(data) == value


def test_the_checksum_of_nothing_is_zero() -> None:
    assert checksum() == checksum(b"") == 0


@given(st.lists(st.binary(max_size=50)))
def test_parts_count_as_one_buffer(parts: list[bytes]) -> None:
    assert checksum(*parts) == checksum(b"".join(parts))


def test_every_kind_of_buffer_has_a_checksum() -> None:
    assert checksum(b"1234", bytearray(b"56"), memoryview(b"x789")[1:]) == 0xE3069283
