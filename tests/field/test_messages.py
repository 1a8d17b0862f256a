"""Whole messages: heads, bodies with a length, in chunks or up to the end, and what is not HTTP."""

import asyncio

import pytest

from tests.field.messages import Head, MalformedError, encode, read_body, read_head
from tests.support.loops import in_loop


def reader_of(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 16)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


@in_loop
async def test_a_head_is_parsed_and_its_body_read() -> None:
    reader = reader_of(b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nA:  b \r\n\r\nabcrest")
    head = await read_head(reader)
    assert head == Head(("POST", "/x", "HTTP/1.1"), {"content-length": "3", "a": "b"})
    assert await read_body(reader, head, is_answer=False) == b"abc"


@in_loop
async def test_a_connection_that_ends_between_messages_is_no_error() -> None:
    assert await read_head(reader_of(b"")) is None


@in_loop
async def test_a_body_in_chunks_ends_after_its_trailers() -> None:
    head = Head(("HTTP/1.1", "200", "OK"), {"transfer-encoding": "chunked"})
    reader = reader_of(b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: 1\r\n\r\nHTTP")
    assert await read_body(reader, head, is_answer=True) == b"abcde"
    assert await reader.read() == b"HTTP"


@in_loop
async def test_a_body_without_a_length_ends_with_the_connection_or_is_empty() -> None:
    answer = Head(("HTTP/1.1", "200", "OK"), {})
    assert await read_body(reader_of(b"to the end"), answer, is_answer=True) == b"to the end"
    assert await read_body(reader_of(b"next request"), answer, is_answer=False) == b""
    empty = Head(("HTTP/1.1", "204", "No Content"), {})
    assert await read_body(reader_of(b"next answer"), empty, is_answer=True) == b""


@pytest.mark.parametrize("data", [b"POST / HT", b"x" * (1 << 17)])
@in_loop
async def test_a_head_that_does_not_end_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        await read_head(reader_of(data))


@pytest.mark.parametrize("fields", [{"content-length": "many"}, {"transfer-encoding": "chunked"}])
@in_loop
async def test_a_length_that_is_no_number_is_malformed(fields: dict[str, str]) -> None:
    with pytest.raises(MalformedError):
        await read_body(reader_of(b"zz\r\n\r\n"), Head(("POST", "/", "HTTP/1.1"), fields), is_answer=False)


def test_hop_by_hop_fields_are_not_passed_on() -> None:
    fields = {"connection": "Upgrade", "upgrade": "x", "transfer-encoding": "chunked", "host": "h"}
    message = encode("POST / HTTP/1.1", fields, b"ab", {"connection": "close"})
    assert message == b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab"
