"""Places as people write them."""

import pytest

from tunnel_client.addresses import is_loopback, join_address, parse_bind, parse_target
from tunnel_client.errors import UsageError


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("db.internal:5432", ("db.internal", 5432)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("reports", ("reports", None)),
    ],
)
def test_targets(text: str, target: tuple[str, int | None]) -> None:
    assert parse_target(text) == target
    assert join_address(*target) == text


@pytest.mark.parametrize("text", ["", ":", "db:", ":80", "db:0", "db:65536", "db:http", "::1:80", "db:²", "[]:80"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(UsageError, match="is no target: write HOST:PORT"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("1080", ("127.0.0.1", 1080)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:1080", ("0.0.0.0", 1080)),
        ("[::1]:1080", ("::1", 1080)),
    ],
)
def test_addresses_to_listen_at(text: str, address: tuple[str, int]) -> None:
    assert parse_bind(text) == address


@pytest.mark.parametrize("text", ["", "x", ":1080", "::1:1080", "1080:", "65536", "-1"])
def test_what_is_no_address_to_listen_at(text: str) -> None:
    with pytest.raises(UsageError, match="is no address to listen at"):
        parse_bind(text)


def test_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.com")] == [
        True,
        True,
        True,
        False,
        False,
    ]
