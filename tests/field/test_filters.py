"""The filters of the scripted proxy: what they admit, in requests and in answers."""

import asyncio

import pytest

from tests.field.filters import FILTERS, entropy
from tests.field.messages import Head, encode, read_body, read_head
from tests.field.rig import a_proxy
from tests.field.scripted import Behaviour
from tests.support.loops import in_loop

HEAD = Head(("POST", "/x", "HTTP/1.1"), {"host": "h"})
RANDOM = bytes(range(256)) * 8


def typed(kind: str) -> Head:
    return Head(HEAD.words, {"content-type": kind})


@pytest.mark.parametrize(
    ("name", "head", "body", "admitted"),
    [
        ("json", typed("application/json; charset=utf-8"), b'{"a":1}', True),
        ("json", typed("application/json"), b"a", False),
        ("json", typed("text/plain"), b"{}", False),
        ("text", typed("text/plain"), b"a", True),
        ("text", typed("text/plain"), b"\xff", False),
        ("text", typed("application/json"), b"{}", False),
        ("ascii", HEAD, b"a", True),
        ("ascii", HEAD, b"\x80", False),
        ("entropy", HEAD, b"", True),
        ("entropy", HEAD, bytes(range(100, 200)), True),
        ("entropy", HEAD, RANDOM, False),
        ("word", HEAD, b"tunnel", True),
        ("word", Head(("POST", "/Tunnel/exchange", "HTTP/1.1"), {}), b"", False),
        ("word", Head(HEAD.words, {"x-tunnel-role": "exit"}), b"", False),
        ("word", Head(HEAD.words, {"user-agent": "tunnel/1"}), b"", False),
    ],
)
def test_a_filter_admits_what_its_name_says(name: str, head: Head, body: bytes, *, admitted: bool) -> None:
    assert FILTERS[name](head, body) is admitted


def test_random_bytes_have_8_bits_of_information_and_hexadecimal_digits_4() -> None:
    assert entropy(RANDOM) == 8
    assert entropy(b"0123456789abcdef" * 9) == 4


@in_loop
async def test_the_proxy_filters_requests_and_answers() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        assert head is not None
        body = await read_body(reader, head, is_answer=False)
        writer.write(encode("HTTP/1.1 200 OK", {}, b"\xff" if body == b"binary" else body, {}))
        writer.close()

    async with a_proxy(Behaviour(scans="403", admits="ascii"), answer) as connect:
        client = await connect()
        found = [(await client.ask(body))[0].words[1] for body in (b"text", b"\xff", b"binary", b"text")]
        assert found == ["200", "403", "403", "200"]
