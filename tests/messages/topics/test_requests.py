"""Produce requests on the wire."""

import asyncio
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.loops import in_loop
from tunnel.messages.errors import ChannelClosedError, MalformedFrameError
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.requests import (
    ProduceDecoder,
    ProduceRequest,
    encode_multi_produce,
    encode_produce,
    read_requests,
)

requests = st.builds(
    lambda topic, partition, payloads: ProduceRequest(topic, partition, ByteBufferMessageSet.of(payloads)),
    st.text(min_size=1, max_size=8), st.integers(-1, 2**31 - 1), st.lists(st.binary(max_size=9), max_size=3),
)  # fmt: skip
Flat = tuple[str, int, bytes]


def flat(request: ProduceRequest) -> Flat:
    return request.topic, request.partition, request.messages.data


def one(payload: bytes = b"x", topic: str = "orders") -> ProduceRequest:
    return ProduceRequest(topic, 7, ByteBufferMessageSet.of([payload]))


def test_the_layout_is_that_of_the_document() -> None:
    data = one().messages.data
    body = struct.pack(">H", 6) + b"orders" + struct.pack(">iI", 7, len(data)) + data
    assert b"".join(encode_produce(one())) == b"\x00\x00" + body
    assert b"".join(encode_multi_produce([one(), one()])) == b"\x00\x03\x00\x02" + body + body
    with pytest.raises(ValueError, match="65536 requests in one multi-produce; at most 65535 are allowed: split them"):
        encode_multi_produce([one()] * 65_536)
    assert encode_multi_produce([one()] * 65_535)[1] == b"\xff\xff"


@settings(max_examples=40)
@given(st.lists(st.lists(requests, min_size=1, max_size=3), max_size=4), st.integers(1, 60))
def test_a_stream_may_be_cut_anywhere(sent: list[list[ProduceRequest]], step: int) -> None:
    data = b"".join(
        piece for each in sent for piece in (encode_produce(each[0]) if len(each) == 1 else encode_multi_produce(each))
    )
    decoder = ProduceDecoder()
    found = [each for start in range(0, len(data), step) for each in decoder.feed(data[start : start + step])]
    assert [[flat(request) for request in each] for each in found] == [[flat(each) for each in group] for group in sent]
    assert decoder.is_between_requests


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x00\x01\x00\x00", r"request key 1: only produce \(0\) and multi-produce \(3\) are accepted"),
        (b"GET / HTTP/1.1", "request key"),
        (b"\x00\x00\x00\x01t" + struct.pack(">iI", 0, 0xFFFFFFFF), "over 1000 bytes: send smaller requests"),
        (b"\x00\x00\x00\x01\xff" + struct.pack(">iI", 0, 0), "^the topic of a request is not UTF-8"),
    ],
)
def test_data_that_is_no_request_is_refused_by_its_first_bytes(data: bytes, match: str) -> None:
    with pytest.raises(MalformedFrameError, match=match):
        ProduceDecoder(1000).feed(data)


def test_all_parts_of_a_multi_request_count_against_the_limit() -> None:
    data = b"".join(encode_multi_produce([one(bytes(400))] * 3))
    with pytest.raises(MalformedFrameError, match="over 1000 bytes"):
        ProduceDecoder(1000).feed(data)
    assert len(ProduceDecoder(2000).feed(data)[0]) == 3


@in_loop
async def test_requests_are_read_until_the_end_of_the_stream() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(encode_multi_produce([one(b"a"), one(b"b")])))
    reader.feed_data(b"".join(encode_produce(one(b"c"))))
    reader.feed_eof()
    assert [list(each.messages.payloads()) async for each in read_requests(reader)] == [[b"a"], [b"b"], [b"c"]]
    cut = asyncio.StreamReader()
    cut.feed_data(b"".join(encode_produce(one()))[:-1])
    cut.feed_eof()
    with pytest.raises(ChannelClosedError):
        [each async for each in read_requests(cut)]


def test_the_limit_counts_all_bytes_of_a_request_and_those_of_no_other() -> None:
    single, double = b"".join(encode_produce(one())), b"".join(encode_multi_produce([one(), one()]))
    for data, groups in ((single, 1), (double, 2)):
        decoder = ProduceDecoder(len(data))
        assert [len(each) for each in decoder.feed(data + data)] == [groups, groups]
        for step in (1, 7):  # in pieces, and after another request
            found = [each for start in range(0, len(data), step) for each in decoder.feed(data[start : start + step])]
            assert [len(each) for each in found] == [groups]
        with pytest.raises(MalformedFrameError, match=f"over {len(data) - 1} bytes"):
            ProduceDecoder(len(data) - 1).feed(data)


def test_what_arrived_of_an_incomplete_request_is_counted() -> None:
    data = b"".join(encode_multi_produce([one(), one()]))
    for size in range(len(data)):
        decoder = ProduceDecoder()
        assert decoder.feed(data[:size]) == []
        assert decoder.held_bytes == size
        assert decoder.is_between_requests == (size == 0)
        assert [flat(each) for each in decoder.feed(data[size:])[0]] == [flat(one()), flat(one())]
        assert decoder.held_bytes == 0


def test_a_multi_request_may_be_empty() -> None:
    assert [len(each) for each in ProduceDecoder().feed(b"\x00\x03\x00\x00" + b"".join(encode_produce(one())))] == [
        0,
        1,
    ]


@in_loop
async def test_readers_of_a_stream_obey_the_limit_and_name_a_cut() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(encode_produce(one(bytes(100)))))
    with pytest.raises(MalformedFrameError, match="over 50 bytes"):
        await anext(read_requests(reader, request_bytes_max=50))
    cut = asyncio.StreamReader()
    cut.feed_data(b"\x00")
    cut.feed_eof()
    with pytest.raises(ChannelClosedError, match=r"^the producer closed the connection within a request$"):
        await anext(read_requests(cut))
