"""Clauses 6.1, 7.1, 7.2, 7.10, 7.11: the envelope and its messages."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import junk, messages, u8
from tunnel.wire.checksum import checksum
from tunnel.wire.envelope import (
    ANSWER_BYTES,
    ENVELOPE_BYTES,
    EVIDENCE_BYTES,
    EXCHANGE_BYTES,
    HTTP_STATUS,
    Answer,
    Attach,
    Attached,
    EnvelopeError,
    Exchange,
    Message,
    Status,
    StatusCode,
    attachment_id,
    decode_envelope,
    encode_envelope,
)

ID = bytes(range(16))
SECRET = bytes(range(32))
ATTACH = Attach(SECRET, 2, 250, 2**20, (1, 2), "é")
ATTACHED = Attached(ID, 2**63, 2, True, 2**20, 2**18, 15_000, 0, 65536, 8, 1)
EXCHANGE = Exchange(ID, 2**63, 2, 3, 4, 5, 15_000, 2**20, 7, True, True, b"packets")
ANSWER = Answer(3, 4, 6, 9, True, True, [(0, 1), (3, 4)], b"packets")
STATUS = Status(StatusCode.BUSY, 1500, "é")
EACH: list[Message] = [ATTACH, ATTACHED, EXCHANGE, ANSWER, STATUS]
each = pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
masks = st.none() | u8


def body_of(message: Message, mask: int | None = None) -> bytes:
    return b"".join(encode_envelope(message, mask=mask))


def seal(kind: int, body: bytes, *, flags: int = 0, mask: int = 0, version: int = 1, more: int = 0) -> bytes:
    """Wrap any body in an envelope with a correct checksum."""
    head = struct.pack("!4sBBBBI", b"TUNL", version, kind, flags, mask, len(body) + more)
    return head + struct.pack("!I", checksum(head, bytes(4), body)) + body


@given(messages, masks)
def test_messages_round_trip(message: Message, mask: int | None) -> None:
    decoded = decode_envelope(body_of(message, mask))
    if isinstance(message, Exchange | Answer):
        message.payload = message.data  # a decoded payload is one buffer
    assert decoded == message


@given(junk)
def test_decoding_never_raises(data: bytes) -> None:
    decode_envelope(data)
    decode_envelope(b"TUNL" + data)


@given(u8, st.integers(0, 6), st.binary(max_size=100), u8, u8)
def test_decoding_never_raises_with_a_valid_checksum(
    version: int, kind: int, body: bytes, flags: int, mask: int
) -> None:
    decoded = decode_envelope(seal(kind, body, flags=flags, mask=mask, version=1))
    assert decoded not in (EnvelopeError.NOT_OURS, EnvelopeError.TRUNCATED, EnvelopeError.CORRUPT)
    if version != 1:
        assert decode_envelope(seal(kind, body, version=version)) is EnvelopeError.VERSION


@pytest.mark.parametrize(
    ("message", "kind", "flags", "body"),
    [
        (ATTACH, 1, 0, SECRET.hex() + "00000002 000000fa 00100000 0001 0002 02 c3a9"),
        (
            ATTACHED,
            2,
            0,
            ID.hex() + "8000000000000000 00000002 01 00000000100000 00040000 00003a98 00000000 00010000 0008 0001",
        ),
        (
            EXCHANGE,
            3,
            6,
            ID.hex()
            + "8000000000000000 00000002 0003 0000 00000004 00000005 00003a98 00100000 00000007"
            + b"packets".hex(),
        ),
        (ANSWER, 4, 10, "0003 0002 00000004 00000006 00000009 0000 00000001 0003 00000004" + b"packets".hex()),
        (STATUS, 5, 0, "0005 0000 000005dc 0002 c3a9"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_layout_is_that_of_the_protocol(message: Message, kind: int, flags: int, body: str) -> None:
    assert body_of(message) == seal(kind, bytes.fromhex(body), flags=flags)


def test_the_size_constants_match_encoded_messages() -> None:
    exchange, answer = Exchange(ID, 1, 1, 0, 1, 0, 0, 0), Answer(0, 1, 1, evidence=[(0, 1)])
    assert len(body_of(exchange)) == EXCHANGE_BYTES == 68
    assert len(body_of(answer)) == ANSWER_BYTES + EVIDENCE_BYTES == 38


@each
def test_a_message_cut_anywhere_is_recognised_as_cut(message: Message) -> None:
    body = body_of(message)
    for cut in range(len(body)):
        expected = EnvelopeError.NOT_OURS if cut < 4 else EnvelopeError.TRUNCATED
        assert decode_envelope(body[:cut]) is expected


@each
@pytest.mark.parametrize("mask", [None, 0x5A])
def test_no_bit_flip_is_accepted(message: Message, mask: int | None) -> None:
    body = body_of(message, mask)
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        expected = {EnvelopeError.NOT_OURS} if bit < 32 else {EnvelopeError.TRUNCATED, EnvelopeError.CORRUPT}
        assert decode_envelope(damaged) in expected


@each
def test_bytes_after_the_end_are_corruption(message: Message) -> None:
    assert decode_envelope(body_of(message) + b"\n") is EnvelopeError.CORRUPT


@pytest.mark.parametrize("body", [b"", b"<html>sign in</html>", b"tunl" + bytes(12), bytes(100)])
def test_a_body_without_our_magic_is_not_ours(body: bytes) -> None:
    assert decode_envelope(body) is EnvelopeError.NOT_OURS


def test_another_version_is_recognised() -> None:
    assert decode_envelope(seal(5, bytes(10), version=2)) is EnvelopeError.VERSION


def test_a_length_beyond_the_end_is_truncation() -> None:
    assert decode_envelope(seal(3, bytes(60), more=2**32 - 61)) is EnvelopeError.TRUNCATED


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0, b""),
        (6, b""),
        (1, body_of(ATTACH)[16:-1]),
        (1, body_of(ATTACH)[16:] + b"x"),
        (1, SECRET + bytes.fromhex("00000002 000000fa 00100000 0002 0001 00")),  # versions inverted
        (1, SECRET + bytes.fromhex("00000002 000000fa 00100000 0001 0001 01 ff")),  # not UTF-8
        (2, body_of(ATTACHED)[16:-1]),
        (2, body_of(ATTACHED)[16:] + b"x"),
        (3, bytes(51)),
        (4, bytes(15)),
        (4, bytes.fromhex("0003 ffff 00000004 00000006 00000009 0000 00000001")),  # more evidence than bytes
        (5, bytes(9)),
        (5, body_of(STATUS)[16:] + b"x"),
        (5, bytes.fromhex("0005 0000 000005dc 0001 ff")),
    ],
)
def test_a_body_that_does_not_match_its_kind_is_malformed(kind: int, body: bytes) -> None:
    assert decode_envelope(seal(kind, body)) is EnvelopeError.MALFORMED


def test_zero_fields_and_unknown_flags_are_ignored() -> None:
    raw = body_of(STATUS)[16:]
    assert decode_envelope(seal(5, raw[:2] + b"\xff\xff" + raw[4:], flags=0xFE, mask=0x55)) == STATUS


def test_an_unknown_code_passes() -> None:
    known, unknown = decode_envelope(body_of(Status(2))), decode_envelope(body_of(Status(99)))
    assert isinstance(known, Status)
    assert known.code is StatusCode.CORRUPT
    assert unknown == Status(99)


def test_every_code_has_its_http_status() -> None:  # 7.10
    assert [HTTP_STATUS[code] for code in StatusCode] == [404, 400, 409, 413, 503, 401, 403, 400]


@given(st.binary(max_size=200), u8)
def test_the_mask_is_xor_after_the_first_16_bytes(payload: bytes, mask: int) -> None:  # 7.1
    EXCHANGE_COPY = Exchange(ID, 1, 1, 0, 1, 0, 0, 0, payload=payload)
    plain, masked = body_of(EXCHANGE_COPY), body_of(EXCHANGE_COPY, mask)
    assert masked[16:] == bytes(byte ^ mask for byte in plain[16:])
    assert masked[:12] == plain[:6] + bytes([plain[6] | 1, mask]) + plain[8:12]


@pytest.mark.parametrize("mask", [-1, 256])
def test_a_mask_is_a_byte(mask: int) -> None:
    with pytest.raises(ValueError, match="a mask must be 0 to 255"):
        encode_envelope(STATUS, mask=mask)


def test_payload_buffers_are_not_copied() -> None:
    payload: list[bytes | bytearray | memoryview] = [b"one", memoryview(b"two"), bytearray(b"three")]
    several = Exchange(ID, 1, 1, 0, 1, 0, 0, 0, payload=payload)
    single = Exchange(ID, 1, 1, 0, 1, 0, 0, 0, payload=payload[1])
    assert all(sent is given for sent, given in zip(encode_envelope(several)[1:], payload, strict=True))
    assert encode_envelope(single)[1] is payload[1]
    assert len(encode_envelope(Answer(0, 1, 1))) == 1
    assert payload == [b"one", b"two", b"three"]


def test_a_decoded_payload_is_a_slice_of_the_body() -> None:
    body = body_of(EXCHANGE)
    decoded = decode_envelope(body)
    assert isinstance(decoded, Exchange)
    assert isinstance(decoded.data, memoryview)
    assert decoded.data.obj is body


def test_data_is_the_payload_in_one_buffer() -> None:
    assert EXCHANGE.data is EXCHANGE.payload
    assert ANSWER.data is ANSWER.payload
    assert Answer(0, 1, 1, payload=[b"a", b"b"]).data == b"ab"
    assert Exchange(ID, 1, 1, 0, 1, 0, 0, 0, payload=[b"a", b"b"]).data == b"ab"


def test_the_id_is_a_hash_of_the_secret() -> None:  # 6.1
    assert attachment_id(SECRET) == hashlib.sha256(b"tunnel attachment 1" + SECRET).digest()[:16]
    with pytest.raises(ValueError, match="a secret must be 32 bytes"):
        attachment_id(bytes(31))


@pytest.mark.parametrize(
    "message",
    [
        Attach(bytes(31), 1, 0, 0),
        Attach(SECRET, 1, 0, 0, (2, 1)),
        Attach(SECRET, 1, 0, 0, (1, 1), "x" * 256),
        Attached(bytes(15), 1, 1, True, 0, 0, 0, 0, 0, 1),
        Attached(ID, 2**64, 1, True, 0, 0, 0, 0, 0, 1),
        Attached(ID, 1, 1, True, 0, 0, 0, 0, 0, 1, age=256),
        Exchange(bytes(17), 1, 1, 0, 1, 0, 0, 0),
        Exchange(ID, 1, 1, 2**16, 1, 0, 0, 0),
        Answer(0, 2**32, 0),
        Answer(0, 1, 0, evidence=[(2**16, 1)]),
        Answer(0, 1, 0, evidence=[(0, 1)] * 2**16),
        Status(2**16),
    ],
)
def test_values_that_do_not_fit_raise(message: Message) -> None:
    with pytest.raises(ValueError, match=r"bytes|fit|lowest version|too long"):
        encode_envelope(message)


def test_an_empty_envelope_has_16_bytes() -> None:
    assert len(seal(5, b"")) == ENVELOPE_BYTES
