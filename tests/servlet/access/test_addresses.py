"""Special addresses, and IPv4 addresses embedded in IPv6 addresses."""

from ipaddress import ip_address

import pytest

from tunnel_servlet.access.addresses import Kind, embedded_addresses, is_within, special
from tunnel_servlet.access.rules import parse_network

KINDS = {
    Kind.LOOPBACK: "127.0.0.1 127.255.255.254 ::1",
    Kind.LINK_LOCAL: "169.254.0.1 169.254.255.255 fe80::1 febf::1",
    Kind.METADATA: "169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd20:ce::254",
    Kind.PRIVATE: "10.0.0.0 10.255.255.255 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 fc00::1 "
    "fdff::1 fec0::1",
    Kind.UNUSABLE: "0.0.0.0 0.1.2.3 224.0.0.1 239.255.255.255 255.255.255.255 :: ff02::1",
    Kind.RESERVED: "192.0.0.1 192.0.2.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.9 240.0.0.1 255.255.255.254 "
    "192.88.99.1 2001:db8::1 2001:1::1 2001:1ff::1 3fff::1 64:ff9b:1::a00:1 100::1 200::1 5f00::1 "
    "4000::1 8000::1 e000::1",
}
CASES = [(text, kind) for kind, texts in KINDS.items() for text in texts.split()]
PUBLIC = (
    "1.1.1.1 9.255.255.255 11.0.0.0 172.15.255.255 172.32.0.0 192.167.255.255 100.63.255.255 100.128.0.0 128.0.0.1 "
)
PUBLIC += "198.17.255.255 198.20.0.0 223.255.255.255 2606:4700::1111 2001:200::1 2400::1 3ffe::1"


@pytest.mark.parametrize(("text", "kind"), CASES)
def test_addresses_in_special_ranges_are_recognised(text: str, kind: Kind) -> None:
    found = special(ip_address(text))
    assert found is not None
    assert found.kind is kind
    assert is_within(ip_address(text), found.network)


@pytest.mark.parametrize("text", PUBLIC.split())
def test_public_addresses_are_not_special(text: str) -> None:
    assert special(ip_address(text)) is None
    assert embedded_addresses(ip_address(text)) == (ip_address(text),)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::127.0.0.1", "127.0.0.1"),
        ("64:ff9b::169.254.169.254", "169.254.169.254"),
        ("2002:7f00:1::", "127.0.0.1"),
        ("2002:a9fe:a9fe::1", "169.254.169.254"),
        ("2001:0:c000:201::80ff:fffe", "192.0.2.1 127.0.0.1"),
        ("2606:4700::5efe:10.0.0.1", "2606:4700::5efe:a00:1 10.0.0.1"),
        ("2606:4700::200:5efe:10.0.0.1", "2606:4700::200:5efe:a00:1 10.0.0.1"),
        ("::1", "::1"),
        ("::", "::"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_embedded_addresses_are_extracted(text: str, inside: str) -> None:
    assert embedded_addresses(ip_address(text)) == tuple(map(ip_address, inside.split()))


def test_networks_contain_no_addresses_of_the_other_ip_version() -> None:
    assert is_within(ip_address("10.1.2.3"), parse_network("10.0.0.0/8"))
    assert not is_within(ip_address("10.1.2.3"), parse_network("::/0"))
