"""The input of an HTTP connection is cut where a request may end, and bodies of known length are not cut."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader, hdrs
from aiohttp.base_protocol import BaseProtocol
from multidict import CIMultiDict

from tests.support.loops import in_loop
from tunnel_servlet.web.pieces import PIECE_BYTES, Pieces

HEAD = b"POST /exchange HTTP/1.1\r\nContent-Length: 9\r\n\r\n"


class Message:
    """A parsed request, as far as `Pieces` looks at it."""

    def __init__(self, length: int | None) -> None:
        self.chunked = length is None
        self.headers = CIMultiDict({} if length is None else {hdrs.CONTENT_LENGTH: str(length)})


def payload() -> StreamReader:
    return StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16, loop=asyncio.get_running_loop())


@in_loop
async def test_each_request_is_a_piece_of_its_own_and_its_body_another() -> None:
    pieces = Pieces()
    pieces.add((HEAD + b"some body") * 2)
    assert pieces.take() == HEAD
    body = payload()
    pieces.begin_body(Message(9), body)
    assert (pieces.is_in_body, pieces.body_bytes) == (True, 9)
    assert pieces.take() == b"some body"
    body.feed_data(b"some body")
    body.feed_eof()
    assert (pieces.is_in_body, pieces.body_bytes) == (False, 0)
    assert pieces.take() == HEAD


@in_loop
async def test_the_rest_of_a_body_is_one_piece_however_long_it_is() -> None:
    pieces, body = Pieces(), payload()
    pieces.begin_body(Message(100_000), body)
    body.feed_data(bytes(10_000))
    assert pieces.is_one(bytes(90_000))
    assert not pieces.is_one(bytes(90_001))
    pieces.add(bytes(90_000) + HEAD)
    assert pieces.take() == bytes(90_000)
    assert pieces.waiting == HEAD


@in_loop
async def test_a_chunked_body_and_endless_heads_come_in_small_pieces() -> None:
    pieces = Pieces()
    pieces.add(b"GET /" + b"x" * 10_000)
    assert len(pieces.take()) == PIECE_BYTES
    pieces = Pieces()
    pieces.begin_body(Message(None), payload())
    pieces.add(b"1\r\na\r\n" * 1000 + b"0\r\n\r\n" + HEAD)
    assert (pieces.is_in_body, pieces.body_bytes) == (True, 0)
    assert len(pieces.take()) == PIECE_BYTES
    assert pieces.take().endswith(b"0\r\n\r\n")
    assert pieces.take() == HEAD


def test_small_data_with_the_end_of_one_head_needs_no_cut() -> None:
    pieces = Pieces()
    assert pieces.is_one(HEAD + b"some body")
    assert pieces.is_one(b"a part of a head")
    assert not pieces.is_one(HEAD + b"some body" + HEAD)
    assert not pieces.is_one(bytes(PIECE_BYTES + 1))


def test_frames_need_not_be_cut_as_far_as_the_caller_says() -> None:
    pieces = Pieces()
    pieces.add(b"head\r\n\r\n" + bytes(10_000))
    assert len(pieces.take(9_000)) == 9_000


@in_loop
async def test_empty_lines_before_a_request_mean_nothing_and_those_in_a_body_do() -> None:
    """Otherwise the end of a client that ends bodies with an empty line would be noticed only after the answer."""
    pieces = Pieces()
    pieces.add(b"\r\n\r\n")
    assert not pieces.waiting
    pieces.add(b"\r\n" + HEAD)
    assert pieces.take() == HEAD
    pieces.begin_body(Message(9), payload())
    pieces.add(b"\r\n")
    assert pieces.take() == b"\r\n"


@in_loop
async def test_an_invalid_request_has_no_body() -> None:
    pieces, over = Pieces(), payload()
    over.feed_eof()
    pieces.begin_body(object(), over)
    assert (pieces.is_in_body, pieces.body_bytes) == (False, 0)
