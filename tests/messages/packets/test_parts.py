"""Parts on the wire: their layout, and streams that are cut anywhere."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.messages.errors import MalformedFrameError
from tunnel.messages.packets.parts import PART_HEADER_BYTES, Part, PartDecoder, encode_part_header

ids = st.integers(-(2**63), 2**63 - 1)
parts = st.builds(
    lambda kind, a, b, c, d, index, last, body: (Part(kind, a, b, c, d, index, last or index < 0), body),
    st.integers(1, 255), ids, ids, ids, ids, st.integers(-1, 2**31 - 1), st.booleans(), st.binary(max_size=40),
)  # fmt: skip


def encode(part: Part, body: bytes) -> bytes:
    return encode_part_header(part, len(body)) + body


def test_the_layout_is_that_of_the_document() -> None:
    part = Part(16, 2, 3, 4, 5, 6, True)
    assert encode(part, b"body") == struct.pack(">IBqqqqiB", 38 + 4, 16, 2, 3, 4, 5, 6, 1) + b"body"
    assert PART_HEADER_BYTES == 42


@given(st.lists(parts, max_size=5), st.integers(1, 60))
def test_a_stream_may_be_cut_anywhere(sent: list[tuple[Part, bytes]], step: int) -> None:
    data = b"".join(encode(part, body) for part, body in sent)
    decoder = PartDecoder()
    found = [part for start in range(0, len(data), step) for part in decoder.feed(data[start : start + step])]
    assert decoder.is_between_parts
    assert [encode(part, part.body()) for part in found] == [encode(part, body) for part, body in sent]
    if data:
        decoder.feed(data[:-1])
        assert not decoder.is_between_parts


@given(st.binary(max_size=300))
def test_any_bytes_give_parts_or_an_error(data: bytes) -> None:
    decoder = PartDecoder(100)
    try:
        found = decoder.feed(data)
    except MalformedFrameError:
        return
    assert all(part.size <= 100 for part in found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"length": 37}, "length 37"),
        ({"length": 38 + 101}, "length 139"),
        ({"length": 0xFFFFFFFF}, "not a part"),
        ({"type": 0}, "type 0"),
        ({"last": 2}, "not a part"),
        ({"correlation": -2}, "correlation id -2"),
        ({"correlation": -1, "last": 0}, "single part"),
    ],
)
def test_data_that_is_no_part_is_refused_by_its_header(change: dict[str, int], text: str) -> None:
    fields = {"length": 40, "type": 16, "a": 0, "b": 0, "c": 0, "d": 0, "correlation": 1, "last": 1} | change
    with pytest.raises(MalformedFrameError, match=text):
        PartDecoder(100).feed(struct.pack(">IBqqqqiB", *fields.values()))


def test_an_empty_part_is_complete_with_its_header() -> None:
    header = encode_part_header(Part(16, 0, 0, 0, 1, -1, True), 0)
    decoder = PartDecoder()
    assert not decoder.feed(header[:-1])
    assert len(decoder.feed(header[-1:])) == 1
    assert len(decoder.feed(header + header)) == 2


def test_a_part_may_be_as_large_as_the_limit_and_has_every_kind_from_1_on() -> None:
    for kind, size in ((1, 100), (255, 0)):
        (found,) = PartDecoder(100).feed(encode(Part(kind, 0, 0, 0, 1, 0, False), bytes(size)))
        assert (found.type, found.size, found.body(), found.last) == (kind, size, bytes(size), False)
    largest = encode(Part(16, 0, 0, 0, 1, 0, True), bytes(256 * 1024))
    assert PartDecoder().feed(largest)[0].size == 256 * 1024
    with pytest.raises(MalformedFrameError, match="length 262183"):
        PartDecoder().feed(encode_part_header(Part(16, 0, 0, 0, 1, 0, True), 256 * 1024 + 1))


def test_an_error_says_what_to_check() -> None:
    with pytest.raises(MalformedFrameError) as caught:
        PartDecoder(100).feed(struct.pack(">IBqqqqiB", 37, 16, 0, 0, 0, 0, 1, 1))
    text = "not a part: length 37, type 16, correlation id 1; check that the peer uses a MessageSession"
    assert str(caught.value) == text
    with pytest.raises(MalformedFrameError, match=r"^not a part: a single part that is not the last$"):
        PartDecoder(100).feed(struct.pack(">IBqqqqiB", 38, 16, 0, 0, 0, 0, -1, 0))


def test_a_part_that_arrives_in_pieces_keeps_them_without_a_copy() -> None:
    data = encode(Part(16, 0, 0, 0, 1, 0, True), b"abcdef")
    decoder = PartDecoder()
    assert not decoder.feed(data[:44])
    assert not decoder.feed(b"")
    assert not decoder.is_between_parts
    (found,) = decoder.feed(data[44:])
    assert [bytes(piece) for piece in found.payload] == [b"ab", b"cdef"]
    assert decoder.is_between_parts
