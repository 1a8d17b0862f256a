"""Clauses 2.5 to 2.12: the payloads of CLOSE, FINISH, ABORT, OPTION, LISTEN_STATE, DROPPED, EDGE and LEAVE."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from tests.wire.strategies import aborts, droppeds, edges, ends, junk, listen_states, option_payloads
from tunnel.wire.control import (
    Abort,
    AbortReason,
    Dropped,
    DropReason,
    Edge,
    End,
    ListenState,
    ListenStatus,
    Option,
    decode_abort,
    decode_dropped,
    decode_edge,
    decode_end,
    decode_leave,
    decode_listen_state,
    decode_option,
    encode_abort,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_leave,
    encode_listen_state,
    encode_option,
)
from tunnel.wire.options import Options

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
DIGEST = bytes(range(16))

# value, its bytes, encoder, decoder
CASES: list[tuple[Any, str, Encode, Decode]] = [
    (Abort(AbortReason.INTEGRITY, "ó"), "0003 0002 c3b3", encode_abort, decode_abort),
    (ListenState(7, ListenStatus.UP, 128, "db"), "00000007 01 0080 02 6462", encode_listen_state, decode_listen_state),
    (
        Dropped(DropReason.FULL, 2**32 - 1, 3, 65536),
        "01 00 0000 ffffffff 00000003 00010000",
        encode_dropped,
        decode_dropped,
    ),
    (Edge(2**32 - 1, 65536), "ffffffff 00010000", encode_edge, decode_edge),
    (7, "00000007", encode_leave, decode_leave),
]
each = pytest.mark.parametrize(("value", "raw", "encode", "decode"), CASES)


@given(ends)
def test_ends_round_trip(value: End) -> None:
    assert decode_end(encode_end(value)) == value


@given(aborts)
def test_aborts_round_trip(value: Abort) -> None:
    assert decode_abort(encode_abort(value)) == value


@given(option_payloads)
def test_options_round_trip(value: Option) -> None:
    assert decode_option(encode_option(value)) == value


@given(listen_states)
def test_listen_states_round_trip(value: ListenState) -> None:
    assert decode_listen_state(encode_listen_state(value)) == value


@given(droppeds)
def test_dropped_payloads_round_trip(value: Dropped) -> None:
    assert decode_dropped(encode_dropped(value)) == value


@given(edges)
def test_edges_round_trip(value: Edge) -> None:
    assert decode_edge(encode_edge(value)) == value


@given(junk)
def test_decoding_never_raises(data: bytes) -> None:
    fixed = (decode_end, decode_dropped, decode_edge, decode_leave)
    for decode in (*fixed, decode_abort, decode_option, decode_listen_state):
        decode(data)
        decode(bytes(4) + data)


@each
def test_the_layout_is_that_of_the_protocol(value: Any, raw: str, encode: Encode, decode: Decode) -> None:
    assert encode(value) == bytes.fromhex(raw)
    assert decode(bytes.fromhex(raw)) == value


@each
def test_a_payload_that_is_cut_or_lengthened_is_malformed(value: Any, raw: str, encode: Encode, decode: Decode) -> None:
    data = bytes.fromhex(raw)
    for cut in range(len(data)):
        assert decode(data[:cut]) is None
    assert decode(data + b"\0") is None


def test_the_layout_of_end_is_that_of_the_protocol() -> None:  # 2.5: a cut may drop the optional field
    raw = bytes.fromhex("0000010000000000" + DIGEST.hex() + "fffffffe")
    assert encode_end(End(2**40, DIGEST, 2**32 - 2)) == raw
    assert decode_end(raw) == End(2**40, DIGEST, 2**32 - 2)
    assert decode_end(raw[:24]) == End(2**40, DIGEST)
    for cut in (*range(24), *range(25, len(raw))):
        assert decode_end(raw[:cut]) is None
    assert decode_end(raw + b"\0") is None


def test_the_layout_of_option_is_that_of_the_protocol() -> None:  # 2.7
    raw = bytes.fromhex("00000009 05 0004 000000fa")
    assert encode_option(Option(9, Options(pull_interval_ms=250))) == raw
    assert decode_option(raw) == Option(9, Options(pull_interval_ms=250))
    assert decode_option(raw[:4]) == Option(9)
    for cut in (*range(4), *range(5, len(raw))):
        assert decode_option(raw[:cut]) is None


def test_text_that_is_not_utf8_is_malformed() -> None:
    assert decode_abort(bytes.fromhex("0001 0001 ff")) is None
    assert decode_listen_state(bytes.fromhex("00000007 01 0080 01 ff")) is None


def test_reasons_have_names_but_unknown_ones_pass() -> None:
    known, unknown = decode_abort(encode_abort(Abort(6))), decode_abort(encode_abort(Abort(600)))
    assert known is not None
    assert known.reason is AbortReason.GONE
    assert unknown == Abort(600)
    dropped = decode_dropped(encode_dropped(Dropped(4, 1, 2, 3)))
    assert dropped is not None
    assert dropped.reason is DropReason.TOO_LARGE
    assert decode_dropped(encode_dropped(Dropped(99, 1, 2, 3))) == Dropped(99, 1, 2, 3)


def test_a_refused_name_with_a_cut_or_empty_text_is_malformed() -> None:
    told = ListenState(7, ListenStatus.REFUSED, 0, "db", "no")
    raw = bytes.fromhex("00000007 02 0000 02 6462 0002 6e6f")
    assert encode_listen_state(told) == raw
    assert decode_listen_state(raw) == told
    for wrong in (raw[:-1], raw + b"x", raw[:10] + b"\0\0", raw[:11], raw[:-1] + b"\xff"):
        assert decode_listen_state(wrong) is None


def test_an_unknown_listen_state_or_an_empty_name_is_malformed() -> None:
    assert decode_listen_state(bytes.fromhex("00000007 03 0080 02 6462")) is None
    assert decode_listen_state(bytes.fromhex("00000007 01 0080 00")) is None


def test_the_zero_fields_are_ignored() -> None:
    assert decode_dropped(bytes.fromhex("01 ff ffff 00000001 00000002 00000003")) == Dropped(1, 1, 2, 3)


@pytest.mark.parametrize(
    ("value", "encode"),
    [
        (End(2**64, DIGEST), encode_end),
        (End(0, b"short"), encode_end),
        (End(0, DIGEST, 2**32), encode_end),
        (Abort(2**16), encode_abort),
        (Abort(1, "x" * 65536), encode_abort),
        (Option(2**32), encode_option),
        (ListenState(0, ListenStatus.UP, 2**16, "db"), encode_listen_state),
        (ListenState(0, ListenStatus.UP, 1, ""), encode_listen_state),
        (ListenState(0, ListenStatus.UP, 1, "x" * 256), encode_listen_state),
        (Dropped(256, 0, 0, 0), encode_dropped),
        (Edge(-1, 0), encode_edge),
        (2**32, encode_leave),
    ],
)
def test_values_that_do_not_fit_raise(value: Any, encode: Encode) -> None:
    with pytest.raises(ValueError, match=r"fit|bytes|too long|name is empty"):
        encode(value)
