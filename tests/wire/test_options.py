"""Clause 2.0: options."""

from typing import Any

import pytest
from hypothesis import given

from tests.wire.strategies import junk, options
from tunnel.wire.options import Options, decode_options, encode_options

NUMBERS = [(2, "packet_bytes_max"), (3, "keepalive_ms"), (4, "user_timeout_ms"), (5, "pull_interval_ms")]


def item(kind: int, value: bytes) -> bytes:
    return bytes([kind, len(value) >> 8, len(value) & 255]) + value


@given(options)
def test_options_round_trip(value: Options) -> None:
    assert decode_options(encode_options(value)) == value


@given(junk)
def test_decoding_never_raises_and_is_stable(data: bytes) -> None:
    value = decode_options(data)
    if value is not None:
        assert decode_options(encode_options(value)) == value


def test_no_options_are_no_bytes() -> None:
    assert encode_options(Options()) == b""
    assert decode_options(b"") == Options()


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_numbers_have_four_bytes(kind: int, name: str) -> None:
    raw = item(kind, bytes([0, 0, 1, 2]))
    assert decode_options(raw) == Options(**{name: 258})  # type: ignore[arg-type]
    assert encode_options(Options(**{name: 258})) == raw  # type: ignore[arg-type]
    assert decode_options(item(kind, bytes(3))) is None
    assert decode_options(item(kind, bytes(5))) is None


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_does_not_fit_raises(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_options(Options(keepalive_ms=number))


def test_versions_are_the_lowest_and_the_highest() -> None:
    assert decode_options(item(1, bytes([0, 1, 0, 3]))) == Options(versions=(1, 3))
    assert decode_options(item(1, bytes([0, 3, 0, 1]))) is None
    assert decode_options(item(1, bytes([0, 3, 0]))) is None
    with pytest.raises(ValueError, match="lowest version 2 is above"):
        encode_options(Options(versions=(2, 1)))


def test_a_user_has_at_most_255_bytes_of_utf8() -> None:
    longest = "é" * 127 + "x"  # 255 bytes
    assert decode_options(encode_options(Options(user=longest))) == Options(user=longest)
    assert decode_options(item(6, b"")) == Options(user="")
    assert decode_options(item(6, bytes(256))) is None
    assert decode_options(item(6, b"\xff")) is None
    with pytest.raises(ValueError, match="256 bytes is longer"):
        encode_options(Options(user=longest + "x"))


def test_an_endpoint_id_has_16_bytes() -> None:
    assert decode_options(item(7, bytes(16))) == Options(endpoint_id=bytes(16))
    assert decode_options(item(7, bytes(15))) is None
    with pytest.raises(ValueError, match="16 bytes, not 17"):
        encode_options(Options(endpoint_id=bytes(17)))


def test_further_ids_have_16_bytes_each_and_are_at_most_eight() -> None:
    ids = tuple(bytes([number]) * 16 for number in range(8))
    assert decode_options(item(12, b"".join(ids))) == Options(further_ids=ids)
    assert encode_options(Options(further_ids=ids)) == item(12, b"".join(ids))
    for wrong in (0, 15, 17, 9 * 16):
        assert decode_options(item(12, bytes(wrong))) is None
    for count in (0, 9):
        with pytest.raises(ValueError, match="1 to 8 further ids"):
            encode_options(Options(further_ids=(bytes(16),) * count))
    with pytest.raises(ValueError, match="16 bytes, not 15"):
        encode_options(Options(further_ids=(bytes(15),)))


def test_the_encryption_option_has_at_most_2048_bytes() -> None:
    assert decode_options(item(8, b"")) == Options(encryption=b"")
    longest = Options(encryption=bytes(2048))
    assert decode_options(encode_options(longest)) == longest
    assert decode_options(item(8, bytes(2049))) is None
    with pytest.raises(ValueError, match="2049 bytes is longer"):
        encode_options(Options(encryption=bytes(2049)))


def _flag(name: str, *, value: bool) -> Options:
    fields: dict[str, Any] = {name: value}
    return Options(**fields)


@pytest.mark.parametrize(("kind", "name"), [(10, "leaving"), (11, "draining")])
def test_the_options_of_those_that_end_are_empty_or_absent(kind: int, name: str) -> None:
    options, none = _flag(name, value=True), _flag(name, value=False)
    assert decode_options(item(kind, b"")) == options
    assert encode_options(options) == item(kind, b"")
    assert decode_options(item(kind, b"\1")) is None
    with pytest.raises(ValueError, match="pass None"):
        encode_options(none)


def test_unknown_kinds_are_skipped_and_kept() -> None:
    raw = item(211, b"") + item(3, bytes(4)) + item(255, b"later") + item(211, b"again")
    value = decode_options(raw)
    assert value == Options(keepalive_ms=0, unknown=item(211, b"") + item(255, b"later") + item(211, b"again"))
    assert encode_options(value) == item(3, bytes(4)) + value.unknown


def test_a_known_kind_twice_is_malformed() -> None:
    assert decode_options(item(6, b"eve") + item(6, b"root")) is None


@pytest.mark.parametrize("raw", [item(3, bytes(4)), item(200, b"later")])
def test_an_item_that_overruns_is_malformed(raw: bytes) -> None:
    for cut in range(1, len(raw)):
        assert decode_options(raw[:cut]) is None
        assert decode_options(item(2, bytes(4)) + raw[:cut]) is None
