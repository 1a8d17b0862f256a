"""Frames: the layout, sizes at the limit and beyond it, and arbitrary bytes."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunnel.messages.calls.frames import FRAME_BYTES_MAX, CallHeader, FrameDecoder, encode_frame
from tunnel.messages.errors import MalformedFrameError, MessageTooLargeError

headers = st.builds(
    CallHeader,
    st.integers(0, 1000),
    st.integers(0, 2**53),
    st.integers(0, 7),
    st.text(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=3),
)


def test_the_layout_is_that_of_the_document() -> None:
    header = b'{"code":10,"opaque":7,"extFields":{"topic":"t"}}'
    data = b"".join(encode_frame(CallHeader(10, 7, fields={"topic": "t"}), b"body"))
    assert data == struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body"


def test_a_frame_without_a_body_is_one_buffer() -> None:
    header = b'{"code":10,"opaque":7}'
    assert encode_frame(CallHeader(10, 7)) == [struct.pack(">II", 4 + len(header), len(header)) + header]


@settings(max_examples=40)
@given(st.lists(st.tuples(headers, st.binary(max_size=30)), max_size=5), st.integers(1, 100))
def test_a_stream_may_be_cut_anywhere(sent: list[tuple[CallHeader, bytes]], step: int) -> None:
    data = b"".join(b"".join(encode_frame(*each)) for each in sent)
    decoder = FrameDecoder()
    found = [each for start in range(0, len(data), step) for each in decoder.feed(data[start : start + step])]
    assert found == sent
    assert decoder.is_between_frames
    assert list(decoder.feed(b"x")) == []
    assert not decoder.is_between_frames


def test_the_limit_counts_the_length_field_itself() -> None:
    header = CallHeader(1, 1)
    overhead = 8 + len(msgspec.json.encode(header))
    largest = b"".join(encode_frame(header, bytes(FRAME_BYTES_MAX - overhead)))
    assert len(largest) == 16_777_216
    assert largest[:4] == (16_777_212).to_bytes(4, "big")
    with pytest.raises(MessageTooLargeError, match="16777217 bytes, at most 16777216"):
        encode_frame(header, bytes(FRAME_BYTES_MAX - overhead + 1))
    decoder = FrameDecoder()
    halves = [*decoder.feed(largest[: 1 << 23]), *decoder.feed(largest[1 << 23 :])]
    assert [len(body) for _, body in halves] == [FRAME_BYTES_MAX - overhead]


def test_a_frame_over_the_limit_is_refused_by_its_first_bytes() -> None:
    assert list(FrameDecoder().feed(struct.pack(">II", 16_777_212, 2))) == []
    with pytest.raises(MalformedFrameError, match="length 16777213"):
        list(FrameDecoder().feed(struct.pack(">II", 16_777_213, 2)))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 10, 7) + bytes(6),
        struct.pack(">II", 3, 0),
        struct.pack(">II", 8, 4) + b"json",
        struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
        struct.pack(">II", 16, 12) + b'{"code":"x"}',
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_data_that_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="not a frame"):
        list(FrameDecoder().feed(data))


def test_two_users_a_header_that_is_nested_deeply_is_refused() -> None:
    """Otherwise, nothing would read the connection any more, and nothing would end it."""
    header = b'{"code":1,"opaque":1,"x":' + 2_000 * b"[" + 2_000 * b"]" + b"}"
    data = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    with pytest.raises(MalformedFrameError, match="not a frame: its header is not the expected JSON"):
        list(FrameDecoder().feed(data))


def test_later_versions_may_have_more_fields() -> None:
    header = b'{"code":1,"opaque":2,"language":"JAVA","version":3}'
    (found,) = FrameDecoder().feed(struct.pack(">II", 4 + len(header), len(header)) + header)
    assert found == (CallHeader(1, 2), b"")


def test_a_header_that_reaches_beyond_its_frame_is_refused() -> None:
    header = b'{"code":10,"opaque":7}'
    for short in (1, 4):
        data = struct.pack(">II", 4 + len(header) - short, len(header)) + header
        with pytest.raises(MalformedFrameError, match=f"header length {len(header)}; check that the other side"):
            list(FrameDecoder().feed(data))
