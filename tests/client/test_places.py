"""Specifications of forwarded ports, targets and addresses: the valid ones, and errors for the others."""

from collections.abc import Callable

import pytest

from tunnel_client.errors import UsageError
from tunnel_client.places import (
    Address,
    ForwardSpec,
    parse_address,
    parse_bind,
    parse_forward,
    parse_service,
    parse_target,
)

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
    (f"1:{'h' * 255}:2", "127.0.0.1:1", f"{'h' * 255}:2"),
]
BAD = [
    ("", "is not a forward specification: write"),
    ("5432", "is not a forward specification"),
    ("1:2:3:4:5", "is not a forward specification"),
    ("2001:db8::7:22:a:1", "is not a forward specification: write .* in brackets"),
    ("[::1:22:a:1", "is not a forward specification"),
    ("80:x[::1]:22", "is not a forward specification"),
    ("5432:db:http", "'http' is not a port"),
    ("db:http:5432:80", "'http' is not a port"),
    ("70000:db:5432", "'70000' is not a port number from 0 to 65535"),
    ("5432:db:0", "'0' is not a port number from 1 to 65535"),
    ("5432:db:", "'' is not a port"),
    ("5432::5432", "'' is not a host"),
    (":5432:db:5432", "'' is not a host"),
    ("5432:d b:5432", "'d b' is not a host"),
    ("5432:5433", "5433 is a port without a host"),
    ("5432:", "'' is not a host"),
    (f"1:{'h' * 256}:2", "is not a host"),
    ("sctp/5432:db:5432", "'sctp' cannot be forwarded, only tcp and udp can"),
    ("udp/53:reports", "a service cannot be reached over UDP: name a HOST:PORT"),
    ("٣:reports", "'٣' is not a port"),
]


@pytest.mark.parametrize(("text", "bind", "target"), GOOD)
def test_valid_specifications_are_parsed(text: str, bind: str, target: str) -> None:
    spec = parse_forward(text)
    assert (spec.protocol, str(spec.bind), str(spec.target)) == ("tcp", bind, target)
    assert str(spec) == f"{bind} -> {target}"


@pytest.mark.parametrize(("text", "message"), BAD)
def test_invalid_specifications_are_explained(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_forward(text)


def test_the_parts_of_a_specification() -> None:
    assert parse_forward("[::1]:1:reports") == ForwardSpec("tcp", Address("::1", 1), Address("reports"))


def test_a_specification_for_datagrams() -> None:
    spec = parse_forward("udp/53:dns.internal:5353")
    assert spec == ForwardSpec("udp", Address("127.0.0.1", 53), Address("dns.internal", 5353))
    assert str(spec) == "udp/127.0.0.1:53 -> dns.internal:5353"


def test_addresses() -> None:
    assert parse_address("db:5432") == Address("db", 5432)
    assert parse_address("[::1]:5432") == Address("::1", 5432)
    for text in ("db", "5432", "::1:5432", "db:5432:1", "[::1]", "[::1]x:1"):
        with pytest.raises(UsageError, match=r"is not an address: write HOST:PORT|is not a port|is not a host"):
            parse_address(text)


def test_loopback_addresses_are_recognised() -> None:
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
def test_invalid_targets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a target: write HOST:PORT"):
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
def test_invalid_addresses_to_listen_at_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address to listen on"):
        parse_bind(text)


ADDRESS_FORM = "write HOST:PORT, with an IPv6 address in brackets"
TARGET_FORM = "write HOST:PORT, [IPV6]:PORT, or the name of a service"
BIND_FORM = "write PORT, or HOST:PORT as in 127.0.0.1:1080"
SERVICE_FORM = "write a name of 1 to 255 bytes without spaces, such as reports"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_address, "d b:1", f"'d b:1': 'd b' is not a host: {ADDRESS_FORM}"),
        (parse_address, "db:x", f"'db:x': 'x' is not a port number from 1 to 65535: {ADDRESS_FORM}"),
        (parse_address, "db", f"'db' is not an address: {ADDRESS_FORM}"),
        (parse_target, "d b", f"'d b': 'd b' is not a host: {TARGET_FORM}"),
        (parse_target, "d b:1", f"'d b:1': 'd b' is not a host: {TARGET_FORM}"),
        (parse_bind, "d b:1", f"'d b:1': 'd b' is not a host: {BIND_FORM}"),
        (parse_service, "d b", f"'d b' is not the name of a service: {SERVICE_FORM}"),
        (parse_service, "", f"'' is not the name of a service: {SERVICE_FORM}"),
        (parse_target, "x" * 60 + ":", f"'{'x' * 60}...' is not a target: {TARGET_FORM}"),
        (parse_target, "x" * 59 + ":", f"'{'x' * 59}:' is not a target: {TARGET_FORM}"),
    ],
)
def test_an_error_names_the_wrong_part_and_the_form_that_was_expected_there(
    parse: Callable[[str], object], text: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_the_name_of_a_service_is_returned_as_it_is() -> None:
    assert parse_service("team/reports") == "team/reports"


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("::1:22", "; did you mean '[::1]:22'?"),
        ("fd00::1", "; the port is missing: did you mean '[fd00::1]:PORT'?"),
        ("[::1]", "the port is missing: did you mean '[::1]:PORT'?"),
        ("fd00::a", "the port is missing: did you mean '[fd00::a]:PORT'?"),
        ("http://db/x", "did you mean 'db:80'?"),
        ("https://db", "did you mean 'db:443'?"),
        ("https://db:8443/", "did you mean 'db:8443'?"),
        ("db:http", "; 'http' is not a port number"),
        ("db:", "is not a target: write HOST:PORT"),
    ],
)
def test_a_target_that_was_nearly_right_is_guessed(text: str, guess: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert guess in str(caught.value)
