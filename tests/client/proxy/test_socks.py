"""SOCKS, byte by byte: whole requests, partial requests, and malformed ones."""

import pytest

from tunnel_client.proxy.requests import MalformedError, Parsed, Why
from tunnel_client.proxy.socks import (
    Socks4Request,
    Socks5Request,
    encode_address,
    parse_address,
    parse_methods,
    parse_socks4,
    parse_socks5,
)

NAMED = b"\x05\x01\x00\x03\x0bdb.internal\x15\x38"
REQUESTS_5 = [
    (NAMED, Socks5Request("db.internal", 5432)),
    (b"\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50", Socks5Request("10.0.0.1", 80)),
    (b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x01\xbb", Socks5Request("::1", 443)),
    (b"\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", Socks5Request("0.0.0.0", 0, is_udp=True)),
]
REQUESTS_4 = [
    (b"\x04\x01\x00\x50\x0a\x00\x00\x01me\x00", Socks4Request("10.0.0.1", 80)),
    (b"\x04\x01\x00\x50\x00\x00\x00\x01\x00db.internal\x00", Socks4Request("db.internal", 80)),
]


@pytest.mark.parametrize(("data", "request_"), REQUESTS_5)
def test_a_request_of_version_5_is_parsed_when_it_is_complete(data: bytes, request_: Socks5Request) -> None:
    assert [parse_socks5(data[:size]) for size in range(len(data))] == [None] * len(data)
    assert parse_socks5(data) == parse_socks5(data + b"more") == Parsed(len(data), request_)


@pytest.mark.parametrize(("data", "request_"), REQUESTS_4)
def test_a_request_of_version_4_is_parsed_when_it_is_complete(data: bytes, request_: Socks4Request) -> None:
    assert [parse_socks4(data[:size]) for size in range(len(data))] == [None] * len(data)
    assert parse_socks4(data) == parse_socks4(data + b"more") == Parsed(len(data), request_)


def test_only_clients_that_insist_on_a_password_are_refused() -> None:
    data = b"\x05\x02\x02\x00"
    assert [parse_methods(data[:size]) for size in range(4)] == [None] * 4
    assert parse_methods(data) == Parsed(4, answer=b"\x05\x00")
    with pytest.raises(MalformedError, match="insists on a password") as caught:
        parse_methods(b"\x05\x01\x02")
    assert caught.value.answer == b"\x05\xff"


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"\x04" + NAMED[1:], 1),
        (b"\x05\x02" + NAMED[2:], 7),
        (b"\x05\x01\x00\x02\x00", 8),
        (NAMED[:-2] + b"\x00\x00", 1),
        (b"\x05\x01\x00\x03\x00\x00\x50", 1),
        (b"\x05\x01\x00\x03\x02\xff\xff\x00\x50", 1),
        (b"\x05\x01\x00\x03\x03a b\x00\x50", 1),
    ],
)
def test_malformed_requests_of_version_5_get_the_matching_reply(data: bytes, reply: int) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_socks5(data)
    assert caught.value.answer == bytes([5, reply, 0, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    "data",
    [
        b"\x04\x02\x00\x50\x0a\x00\x00\x01\x00",
        b"\x04\x01\x00\x00\x0a\x00\x00\x01\x00",
        b"\x04\x01\x00\x50\x00\x00\x00\x01\x00\x00",
        b"\x04\x01\x00\x50\x0a\x00\x00\x01" + b"x" * 256,
    ],
)
def test_malformed_requests_of_version_4_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_socks4(data)
    assert caught.value.answer == b"\x00\x5b" + bytes(6)


def test_answers_have_the_bytes_of_their_version() -> None:
    five, four = Socks5Request("a", 1), Socks4Request("a", 1)
    assert five.success_answer() == b"\x05\x00\x00\x01" + bytes(6)
    assert five.association_answer("127.0.0.1", 258) == b"\x05\x00\x00\x01\x7f\x00\x00\x01\x01\x02"
    assert four.success_answer() == b"\x00\x5a" + bytes(6)
    assert {reason: five.refusal_answer(reason, "")[1] for reason in Why} == {
        Why.DENIED: 2,
        Why.NOT_RESOLVED: 4,
        Why.REFUSED: 5,
        Why.UNREACHABLE: 4,
        Why.TIMED_OUT: 6,
        Why.BUSY: 1,
        Why.LOST: 1,
    }
    assert {four.refusal_answer(reason, "")[1] for reason in Why} == {91}


@pytest.mark.parametrize("place", [("127.0.0.1", 1), ("::1", 65535), ("db.internal", 53), ("bücher.example", 80)])
def test_addresses_survive_packing_and_parsing(place: tuple[str, int]) -> None:
    encoded = encode_address(*place)
    assert parse_address(b"xx" + encoded, 2) == (*place, 2 + len(encoded))
    assert parse_address(encoded[:-1], 0) is None


def test_invalid_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 255"):
        encode_address("x" * 256, 1)
    with pytest.raises(ValueError, match="type 9"):
        parse_address(b"\x09", 0)
