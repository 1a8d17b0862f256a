"""Clauses 2.1 to 2.3: CONNECT, ACCEPTED, REJECTED."""

import pytest
from hypothesis import given

from tests.wire.strategies import accepteds, connects, junk, rejecteds
from tunnel.wire.opening import (
    Accepted,
    Connect,
    Rejected,
    RejectReason,
    Target,
    TargetKind,
    asked_about,
    decode_accepted,
    decode_connect,
    decode_rejected,
    encode_accepted,
    encode_connect,
    encode_rejected,
    question_about,
)
from tunnel.wire.options import Options

KEY = bytes(range(16))
TCP = Target(TargetKind.TCP, "db", 5432)
CONNECT = encode_connect(Connect(KEY, True, TCP, 65536, Options(keepalive_ms=1)))
ACCEPTED = encode_accepted(Accepted(KEY, True, 65536, Options(keepalive_ms=1)))
REJECTED = encode_rejected(Rejected(KEY, RejectReason.VERSION, "no", Options(versions=(1, 1))))


@given(connects)
def test_connect_round_trips(connect: Connect) -> None:
    assert decode_connect(encode_connect(connect)) == connect


@given(accepteds)
def test_accepted_round_trips(accepted: Accepted) -> None:
    assert decode_accepted(encode_accepted(accepted)) == accepted


@given(rejecteds)
def test_rejected_round_trips(rejected: Rejected) -> None:
    assert decode_rejected(encode_rejected(rejected)) == rejected


@given(junk)
def test_decoding_never_raises(data: bytes) -> None:
    for decode in (decode_connect, decode_accepted, decode_rejected):
        decode(data)
        decode(KEY + data)


def test_the_layout_of_connect_is_that_of_the_protocol() -> None:  # 2.1
    assert KEY + bytes.fromhex("01 01 1538 02 6462 00010000 03 0004 00000001") == CONNECT


def test_the_layout_of_accepted_is_that_of_the_protocol() -> None:  # 2.2
    assert KEY + bytes.fromhex("01 00010000 03 0004 00000001") == ACCEPTED


def test_the_layout_of_rejected_is_that_of_the_protocol() -> None:  # 2.3
    assert KEY + bytes.fromhex("0009 0002 6e6f 01 0004 0001 0001") == REJECTED


@pytest.mark.parametrize(
    ("raw", "options_at"), [(CONNECT, 27), (ACCEPTED, 21), (REJECTED, 22)], ids=["connect", "accepted", "rejected"]
)
def test_a_payload_may_be_cut_only_before_its_options(raw: bytes, options_at: int) -> None:
    decode = {CONNECT: decode_connect, ACCEPTED: decode_accepted, REJECTED: decode_rejected}[raw]
    whole = [cut for cut in range(len(raw) + 1) if decode(raw[:cut]) is not None]
    assert whole == [options_at, len(raw)]


def test_unknown_flags_are_ignored() -> None:
    connect = decode_connect(KEY + b"\xfe" + CONNECT[17:])
    accepted = decode_accepted(KEY + b"\xff" + ACCEPTED[17:])
    assert connect is not None
    assert not connect.resume
    assert accepted is not None
    assert accepted.resumed


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (17, b"\0"),  # target kinds that do not exist
        (17, b"\5"),
        (17, b"\3"),  # a question that resumes
        (17, b"\2"),  # a service with a port
        (18, b"\0\0"),  # a TCP target without a port
        (21, b"\xff"),  # a host that is not UTF-8
        (20, b"\xff"),  # a host that overruns
    ],
)
def test_a_malformed_target_makes_connect_malformed(at: int, value: bytes) -> None:
    assert decode_connect(CONNECT[:at] + value + CONNECT[at + len(value) :]) is None


def test_a_question_is_about_a_target_and_no_other_connect_is_one() -> None:  # 3.14
    for target in (TCP, Target(TargetKind.SERVICE, "reports")):
        question = question_about(target)
        assert question.kind not in (TargetKind.TCP, TargetKind.SERVICE)
        assert asked_about(question) == target
        assert asked_about(target) is None


def test_an_empty_host_is_malformed() -> None:
    assert decode_connect(CONNECT[:20] + b"\0" + CONNECT[23:]) is None


@pytest.mark.parametrize(
    ("kind", "host", "port"),
    [
        (TargetKind.TCP, "", 80),
        (TargetKind.TCP, "h" * 256, 80),
        (TargetKind.TCP, "é" * 128, 80),
        (TargetKind.TCP, "host", 0),
        (TargetKind.TCP, "host", 65536),
        (TargetKind.TCP, "host", -1),
        (TargetKind.SERVICE, "", 0),
        (TargetKind.SERVICE, "name", 1),
        (TargetKind.TCP_QUESTION, "host", 0),
        (TargetKind.SERVICE_QUESTION, "name", 1),
    ],
)
def test_an_impossible_target_raises(kind: TargetKind, host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|port"):
        Target(kind, host, port)


def test_a_host_may_have_255_bytes() -> None:
    connect = Connect(KEY, False, Target(TargetKind.SERVICE, "h" * 255), 0)
    assert decode_connect(encode_connect(connect)) == connect


def test_reasons_have_names_but_unknown_ones_pass() -> None:
    known = decode_rejected(encode_rejected(Rejected(KEY, 7)))
    unknown = decode_rejected(encode_rejected(Rejected(KEY, 999)))
    assert known is not None
    assert known.reason is RejectReason.GONE
    assert unknown is not None
    assert unknown.reason == 999


@pytest.mark.parametrize("key", [bytes(15), bytes(17)])
def test_a_route_key_of_another_size_raises(key: bytes) -> None:
    with pytest.raises(ValueError, match="a route key must be 16 bytes"):
        encode_connect(Connect(key, False, TCP, 0))
    with pytest.raises(ValueError, match="a route key must be 16 bytes"):
        encode_accepted(Accepted(key, False, 0))
    with pytest.raises(ValueError, match="a route key must be 16 bytes"):
        encode_rejected(Rejected(key, 1))


def test_values_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_connect(Connect(KEY, False, TCP, 2**32))
    with pytest.raises(ValueError, match="does not fit"):
        encode_accepted(Accepted(KEY, False, -1))
    with pytest.raises(ValueError, match="does not fit"):
        encode_rejected(Rejected(KEY, 2**16))
