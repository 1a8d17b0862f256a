"""Specifications of forwarded ports, targets and addresses: the valid ones, and errors for the others."""

from collections.abc import Callable

import pytest

from tunnel_client.errors import UsageError
from tunnel_client.places import (
    Address,
    ForwardSpec,
    is_datagram_service,
    parse_address,
    parse_bind,
    parse_forward,
    parse_forwards,
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
    ("unix:/run/my.sock:db:5433", "unix:/run/my.sock", "db:5433"),
    ("unix:./my.sock:[::1]:5433", "unix:./my.sock", "[::1]:5433"),
    ("unix:/run/a:reports", "unix:/run/a", "reports"),
    ("unix:/run/a:unix:/run/b:1", "unix:/run/a", "unix:/run/b:1"),
    ("5432:unix:/run/b", "127.0.0.1:5432", "unix:/run/b"),
    ("[::1]:5432:unix:/run/b", "[::1]:5432", "unix:/run/b"),
    ("*:5432:unix:/run/b", "0.0.0.0:5432", "unix:/run/b"),
    ("5432:srv/_postgres._tcp.example", "127.0.0.1:5432", "srv/_postgres._tcp.example"),
    ("unix:/run/a:srv/_pg._tcp.example", "unix:/run/a", "srv/_pg._tcp.example"),
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
    ("/run/x.sock:db:5432", "begins with a path: did you mean 'unix:/run/x.sock:db:5432'"),
    ("./x.sock:reports", "begins with a path: did you mean 'unix:./x.sock:reports'"),
    ("5432:/run/x.sock", "'/run/x.sock' is a path: did you mean 'unix:/run/x.sock'"),
    ("5432:srv:_postgres._tcp.example", "did you mean '5432:srv/_postgres._tcp.example'"),
    ("5432:", "'' is not a host"),
    (f"1:{'h' * 256}:2", "is not a host"),
    ("sctp/5432:db:5432", "'sctp' cannot be forwarded, only tcp and udp can"),
    ("udp/unix:/run/a:db:1", "a Unix socket carries no datagrams"),
    ("udp/53:unix:/run/a", "a Unix socket carries no datagrams"),
    ("unix::db:1", "'' is not the path of a Unix socket: write it as in unix:/run/"),
    ("unix:run/a:db:1", "'run/a' is not the path of a Unix socket"),
    ("unix:/run/:db:1", "'/run/' is not the path"),
    ("5432:unix:./a", "'./a' is not the path of a Unix socket"),
    ("unix:/run/a", "is not a target: write HOST:PORT"),
    (f"unix:/{'a' * 107}:db:1", "has at most 107 bytes, not 108"),
    ("x:unix:/run/a", "is not an address to listen on"),
    ("5432:srv/db.example", "'db.example' is not the name of an SRV record: write _SERVICE._PROTOCOL.DOMAIN"),
    ("5432:srv/", "'' is not the name of an SRV record"),
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


def test_a_specification_has_two_addresses() -> None:
    assert parse_forward("[::1]:1:reports") == ForwardSpec("tcp", Address("::1", 1), Address("reports"))


def test_a_specification_may_be_for_datagrams() -> None:
    spec = parse_forward("udp/53:dns.internal:5353")
    assert spec == ForwardSpec("udp", Address("127.0.0.1", 53), Address("dns.internal", 5353))
    assert str(spec) == "udp/127.0.0.1:53 -> dns.internal:5353"


def test_addresses_have_a_host_and_a_port() -> None:
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
def test_targets_are_parsed_and_printed(text: str, target: tuple[str, int | None]) -> None:
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
def test_addresses_to_listen_at_are_parsed(text: str, address: tuple[str, int]) -> None:
    found = parse_bind(text)
    assert (found.host, found.port) == address


@pytest.mark.parametrize("text", ["", "x", ":1080", "::1:1080", "1080:", "65536", "-1"])
def test_invalid_addresses_to_listen_at_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address to listen on"):
        parse_bind(text)


ADDRESS_FORM = "write HOST:PORT, with an IPv6 address in brackets, or unix:PATH"
TARGET_FORM = "write HOST:PORT, [IPV6]:PORT, unix:PATH, srv/NAME, or the name of a service"
BIND_FORM = "write PORT, or HOST:PORT as in 127.0.0.1:1080"
SERVICE_FORM = "write a name of 1 to 255 bytes without spaces, such as reports"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_address, "d b:1", f"'d b:1': 'd b' is not a host: {ADDRESS_FORM}"),
        (parse_address, "db:x", f"'db:x': 'x' is not a port number from 1 to 65535: {ADDRESS_FORM}"),
        (parse_address, "db", f"'db' is not an address: {ADDRESS_FORM}"),
        (parse_address, "8000", f"'8000' is not an address: {ADDRESS_FORM}; did you mean '127.0.0.1:8000'?"),
        (
            parse_address,
            "http://db:8000/",
            f"'http://db:8000/' is not an address: {ADDRESS_FORM}; did you mean 'db:8000'?",
        ),
        (parse_target, "d b", f"'d b': 'd b' is not a host: {TARGET_FORM}"),
        (parse_target, "d b:1", f"'d b:1': 'd b' is not a host: {TARGET_FORM}"),
        (parse_bind, "d b:1", f"'d b:1': 'd b' is not a host: {BIND_FORM}"),
        (parse_service, "d b", f"'d b' is not the name of a service: {SERVICE_FORM}"),
        (parse_service, "", f"'' is not the name of a service: {SERVICE_FORM}"),
        (parse_target, "1:" * 30 + ":", f"'{'1:' * 30}...' is not a target: {TARGET_FORM}"),
        (parse_target, "1:" * 29 + "1:", f"'{'1:' * 29}1:' is not a target: {TARGET_FORM}"),
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
        ("db:", "; the port is missing: did you mean 'db:PORT'?"),
        (":80", "; the host is missing: did you mean 'HOST:80'?"),
        ("ann@db:22", "; did you mean 'db:22'?"),
    ],
)
def test_a_target_that_was_nearly_right_is_guessed(text: str, guess: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert guess in str(caught.value)


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("9000:http://db:8000/", "'9000:db:8000'"),
        ("9000:https://db", "'9000:db:443'"),
        ("9000:::1:22", "'9000:[::1]:22'"),
        ("9000:fd00::1:22", "'9000:[fd00::1]:22'"),
        ("db:5432:9000", "'9000:db:5432'"),
        ("127.0.0.1:5432:0", "'0:127.0.0.1:5432'"),
        ("db:5432", "'5432:db:5432'"),
        ("127.0.0.1:5432", "'5432:127.0.0.1:5432'"),
    ],
)
def test_a_forward_that_was_nearly_right_is_guessed(text: str, guess: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_forward(text)
    assert str(caught.value).endswith(f"; did you mean {guess}?")


@pytest.mark.parametrize("text", ["5432:5433", "9000:nothing://a", "db", "9000:ftp://db", "9000:a:b:c:d"])
def test_no_guess_is_made_where_none_is_evident(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_forward(text)
    assert "did you mean" not in str(caught.value)


def test_a_service_may_carry_datagrams() -> None:
    spec = parse_forward("udp/53:dns")
    assert (spec, str(spec)) == (
        ForwardSpec("udp", Address("127.0.0.1", 53), Address("udp/dns")),
        "udp/127.0.0.1:53 -> udp/dns",
    )
    assert [is_datagram_service(parse_service(name)) for name in ("udp/dns", "dns", "udp")] == [True, False, False]
    for name in ("udp/", "srv/x", "unix:/run/a"):
        with pytest.raises(UsageError, match="is not the name of a service"):
            parse_service(name)


@pytest.mark.parametrize(
    ("text", "first", "last", "count"),
    [
        ("8000-8010:db:9000-9010", "127.0.0.1:8000 -> db:9000", "127.0.0.1:8010 -> db:9010", 11),
        ("[::1]:1-2:[fd00::1]:3-4", "[::1]:1 -> [fd00::1]:3", "[::1]:2 -> [fd00::1]:4", 2),
        ("*:7-7:db:7-7", "0.0.0.0:7 -> db:7", "0.0.0.0:7 -> db:7", 1),
        ("udp/5-6:db:5-6", "udp/127.0.0.1:5 -> db:5", "udp/127.0.0.1:6 -> db:6", 2),
        ("8080:db:80", "127.0.0.1:8080 -> db:80", "127.0.0.1:8080 -> db:80", 1),
        ("8080:1-2", "127.0.0.1:8080 -> 1-2", "127.0.0.1:8080 -> 1-2", 1),
        ("unix:/run/a:db:1", "unix:/run/a -> db:1", "unix:/run/a -> db:1", 1),
        ("1-1000:db:64536-65535", "127.0.0.1:1 -> db:64536", "127.0.0.1:1000 -> db:65535", 1000),
    ],
)
def test_ranges_of_ports_lead_to_ranges_of_equal_length(text: str, first: str, last: str, count: int) -> None:
    found = [str(spec) for spec in parse_forwards(text)]
    assert (found[0], found[-1], len(found)) == (first, last, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1-3:db:1-2", "3 local ports cannot lead to 2 ports: write both ranges"),
        ("1-3:db:80", "'80' is one port, and the other end a range"),
        ("80:db:1-3", "'80' is one port, and the other end a range"),
        ("1-3:reports", "a range of ports cannot lead to a service"),
        ("3-1:db:3-1", "3-1 is not a range of 1 to 1000 ports, the lowest first"),
        ("1-1001:db:1-1001", "1-1001 is not a range of 1 to 1000 ports"),
        ("0-3:db:0-3", "'0' is not a port number from 1"),
        ("65535-65536:db:1-2", "'65536' is not a port number"),
        ("", "is not a forward specification"),
    ],
)
def test_invalid_ranges_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_forwards(text)


def test_special_targets_and_addresses_are_parsed() -> None:
    found = parse_target("unix:/run/a")
    assert (found.path, found.port, str(found), found.is_loopback) == ("/run/a", 1, "unix:/run/a", True)
    assert parse_target("srv/_x._tcp.example") == Address("srv:_x._tcp.example", 1)
    assert parse_address("unix:./a") == Address("unix:./a", 1)
    assert Address("db", 1).path == ""
