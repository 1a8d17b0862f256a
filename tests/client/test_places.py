"""What may be written for a port that leads somewhere, and what is said about anything else."""

import pytest

from tunnel_client.errors import UsageError
from tunnel_client.places import Address, ForwardSpec, parse_address, parse_bind, parse_forward, parse_target

GOOD = [
    ("5432:db.internal:5432", "127.0.0.1:5432", "db.internal:5432"),
    ("0:10.0.0.7:22", "127.0.0.1:0", "10.0.0.7:22"),
    ("8080:reports", "127.0.0.1:8080", "reports"),
    ("localhost:8080:reports", "localhost:8080", "reports"),
    ("10.1.2.3:8080:reports", "10.1.2.3:8080", "reports"),
    ("0.0.0.0:5432:db:5433", "0.0.0.0:5432", "db:5433"),
    ("*:5432:db:5433", "0.0.0.0:5432", "db:5433"),
    ("[::1]:5432:[2001:db8::7]:5433", "[::1]:5432", "[2001:db8::7]:5433"),
    ("[::1]:5432:reports", "[::1]:5432", "reports"),
    ("5432:[::1]:5433", "127.0.0.1:5432", "[::1]:5433"),
    ("1:2:3", "127.0.0.1:1", "2:3"),
    ("tcp/5432:db:5433", "127.0.0.1:5432", "db:5433"),
    ("8080:team/reports", "127.0.0.1:8080", "team/reports"),
]
BAD = [
    ("", "leads nowhere: write"),
    ("5432", "leads nowhere"),
    ("1:2:3:4:5", "leads nowhere"),
    ("2001:db8::7:22:a:1", "leads nowhere: write .* in brackets"),
    ("[::1:22:a:1", "leads nowhere"),
    ("80:x[::1]:22", "leads nowhere"),
    ("5432:db:http", "'http' is no port"),
    ("db:http:5432:80", "'http' is no port"),
    ("70000:db:5432", "'70000' is no port, which is a number from 0 to 65535"),
    ("5432:db:0", "'0' is no port, which is a number from 1 to 65535"),
    ("5432:db:", "'' is no port"),
    ("5432::5432", "'' is no host"),
    (":5432:db:5432", "'' is no host"),
    ("5432:d b:5432", "'d b' is no host"),
    ("5432:5433", "5433 is a port without a host"),
    ("5432:", "'' is no host"),
    ("sctp/5432:db:5432", "'sctp' cannot be forwarded, only tcp"),
    ("٣:reports", "'٣' is no port"),
]


@pytest.mark.parametrize(("text", "bind", "target"), GOOD)
def test_what_leads_somewhere(text: str, bind: str, target: str) -> None:
    spec = parse_forward(text)
    assert (spec.protocol, str(spec.bind), str(spec.target)) == ("tcp", bind, target)
    assert str(spec) == f"{bind} -> {target}"


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_does_not(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_forward(text)


def test_the_parts_of_a_specification() -> None:
    assert parse_forward("[::1]:1:reports") == ForwardSpec("tcp", Address("::1", 1), Address("reports"))


def test_addresses() -> None:
    assert parse_address("db:5432") == Address("db", 5432)
    assert parse_address("[::1]:5432") == Address("::1", 5432)
    for text in ("db", "5432", "::1:5432", "db:5432:1", "[::1]", "[::1]x:1"):
        with pytest.raises(UsageError):
            parse_address(text)


def test_what_this_machine_alone_reaches() -> None:
    assert all(Address(host, 1).is_loopback for host in ("127.0.0.1", "127.9.9.9", "::1", "LocalHost"))
    assert not any(Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "here.example"))


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
    found = parse_target(text)
    assert (found.host, found.port) == target
    assert str(found) == text


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
    found = parse_bind(text)
    assert (found.host, found.port) == address


@pytest.mark.parametrize("text", ["", "x", ":1080", "::1:1080", "1080:", "65536", "-1"])
def test_what_is_no_address_to_listen_at(text: str) -> None:
    with pytest.raises(UsageError, match="is no address to listen at"):
        parse_bind(text)
