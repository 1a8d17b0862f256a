"""A response body in pieces is split into whole envelopes (PROTOCOL 7.20)."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import answers
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.wire import Answer, Buffer, encode_envelope

LIMIT = 10_000


def body_of(answer: Answer) -> bytes:
    return b"".join(encode_envelope(answer))


def pieces_of(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    return [body[start:end] for start, end in itertools.pairwise(places)]


def fed(stream: EnvelopeStream, pieces: list[bytes]) -> list[Buffer]:
    return [whole for piece in pieces for whole in stream.feed(piece)]


@given(st.lists(answers, max_size=5), st.lists(st.integers(0, 100_000), max_size=20))
def test_envelopes_come_whole_and_in_order_wherever_the_body_is_split(found: list[Answer], cuts: list[int]) -> None:
    bodies = [body_of(answer) for answer in found]
    stream = EnvelopeStream(LIMIT)
    assert [bytes(whole) for whole in fed(stream, pieces_of(b"".join(bodies), cuts))] == bodies
    assert (stream.held_bytes, stream.is_broken) == (0, False)


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_any_bytes_are_taken_and_little_of_them_is_kept(pieces: list[bytes]) -> None:
    stream = EnvelopeStream(100)
    whole = fed(stream, pieces)
    assert sum(map(len, whole)) + stream.held_bytes <= sum(map(len, pieces))
    assert stream.held_bytes <= 100 + 300


def test_a_page_is_kept_for_the_error_text() -> None:
    stream = EnvelopeStream(LIMIT)
    assert fed(stream, [b"<html>", b"please sign in, then try again"]) == []
    assert stream.is_broken
    assert stream.rest == b"<html>please sign in, then try again"
    for _ in range(20):
        stream.feed(bytes(1000))
    assert stream.held_bytes <= LIMIT + 1000


def test_an_envelope_larger_than_the_limit_breaks_the_body() -> None:
    body = body_of(Answer(0, 1, 1, payload=bytes(200)))
    stream = EnvelopeStream(100)
    assert fed(stream, [body]) == []
    assert stream.is_broken


def test_envelopes_before_the_damage_count() -> None:
    body = body_of(Answer(0, 1, 1))
    stream = EnvelopeStream(LIMIT)
    assert len(fed(stream, [body + body + b"damage, damage, damage"])) == 2
    assert stream.is_broken
