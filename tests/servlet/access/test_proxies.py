"""What trusted proxies say about clients: X-Forwarded-For read from its end, and the PROXY header byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import ip_network

import pytest

from tunnel_servlet.access.proxies import UNIX, ProxyHeaderError, TrustedProxies, body_bytes, client_in
from tunnel_servlet.web.public.proxy_header import proxy_header

PROXIES = TrustedProxies([ip_network("10.0.0.0/8"), ip_network("fd00::/8")], has_unix=True)
HEAD = struct.Struct("!12sBBH")
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("fd00::1", ["2001:db8::7"], "2001:db8::7"),
        (UNIX, ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["6.6.6.6, 192.0.2.7"], "192.0.2.7"),  # what the client itself has sent stands before
        ("10.0.0.1", ["6.6.6.6", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, 10.0.0.2, 10.0.0.3"], "192.0.2.7"),  # a chain of trusted proxies
        ("10.0.0.1", ["6.6.6.6, 192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["10.0.0.9"], "10.0.0.9"),  # a client among the proxies
        ("10.0.0.1", ["192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("10.0.0.1", ["::ffff:192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["fe80::7%eth0"], "fe80::7"),  # an interface of the proxy says nothing of the client
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, unknown"], ""),
        ("10.0.0.1", ["192.0.2.7, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["192.0.2.7,"], ""),
        ("10.0.0.1", [""], ""),
        ("10.0.0.1", ["' OR 1=1 --"], ""),
        ("10.0.0.1", [], ""),
        ("192.0.2.1", ["6.6.6.6"], ""),  # no proxy of ours: forged
        ("", ["6.6.6.6"], ""),
        ("nonsense", ["6.6.6.6"], ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_proxy(peer: str, lines: Sequence[str], client: str) -> None:
    assert PROXIES.client_of(peer, lines) == client


def test_a_long_header_is_read_from_its_end_only() -> None:
    assert PROXIES.client_of("10.0.0.1", ["6.6.6.6," * 10_000 + "192.0.2.7"]) == "192.0.2.7"
    assert PROXIES.client_of("10.0.0.1", ["6.6.6.6," + "10.0.0.2," * 100 + "10.0.0.3"]) == "10.0.0.2"


def test_without_trusted_proxies_nothing_counts() -> None:
    assert TrustedProxies().client_of("10.0.0.1", ["192.0.2.7"]) == ""
    assert not TrustedProxies().trusts(UNIX)


@pytest.mark.parametrize("client", [("192.0.2.7", 4711), ("2001:db8::7", 65535)])
def test_the_header_that_a_relay_writes_is_understood(client: tuple[str, int]) -> None:
    header = proxy_header(client, ("::1" if ":" in client[0] else "127.0.0.1", 80))
    assert body_bytes(header[:16]) == len(header) - 16
    assert client_in(header[:16], header[16:]) == client
    assert client_in(header[:16], header[16:] + b"\x04\x00\x01x") == client  # extensions follow


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"PROXY TCP4 192.0", "^it does not begin with a PROXY header of version 2$"),
        (b"GET / HTTP/1.1\r\n", "does not begin with a PROXY header of version 2"),
        (HEAD.pack(SIGNATURE, 0x11, 0x11, 12), "version or command 0x11"),
        (HEAD.pack(SIGNATURE, 0x22, 0x11, 12), "version or command 0x22"),
        (HEAD.pack(SIGNATURE, 0x21, 0x11, 2049), "2049 bytes, more than 2048"),
    ],
)
def test_what_is_no_header_is_refused(head: bytes, text: str) -> None:
    with pytest.raises(ProxyHeaderError, match=text):
        body_bytes(head)


def test_a_header_may_have_two_kibibytes_behind_its_head() -> None:
    assert body_bytes(HEAD.pack(SIGNATURE, 0x21, 0x11, 2048)) == 2048


@pytest.mark.parametrize(
    ("family", "size", "why"),
    [
        (0x11, 11, "has only 11 bytes of addresses"),
        (0x21, 35, "has only 35 bytes of addresses"),
        *((family, 36, f"is of no TCP connection: {family:#x}") for family in (0x12, 0x22, 0x41)),
    ],
)
def test_addresses_that_are_cut_off_or_not_of_tcp_are_refused(family: int, size: int, why: str) -> None:
    with pytest.raises(ProxyHeaderError, match=f"^its PROXY header {why}$"):
        client_in(HEAD.pack(SIGNATURE, 0x21, family, size), b"\0" * size)


@pytest.mark.parametrize(("command", "family"), [(0x20, 0x11), (0x20, 0x00), (0x21, 0x00), (0x21, 0x31)])
def test_a_probe_of_the_proxy_and_a_unix_socket_name_no_client(command: int, family: int) -> None:
    assert client_in(HEAD.pack(SIGNATURE, command, family, 0), b"") is None
