"""The PROXY header, version 2: tells a service the address of the client before everything else.

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
"""

import struct
from ipaddress import ip_address

from tunnel_servlet.access.proxies import plain_address

__all__ = ["proxy_header"]

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_VERSION_AND_PROXY = 0x21
_TCP4, _TCP6 = 0x11, 0x21
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in an IPv6 address that stands for it: RFC 4291, 2.5.5.2
_PORTS = struct.Struct("!HH")
_HEAD = struct.Struct("!BBH")


def proxy_header(client: tuple[str, int], server: tuple[str, int]) -> bytes:
    """Return the header for a connection from `client` to `server`, both an address and a port.

    It has one family for both. If they differ, because a proxy has told the client's address, both are shown as IPv6.
    """
    addresses = [plain_address(ip_address(host.partition("%")[0])) for host, _ in (client, server)]
    family = _TCP4 if all(address.version == 4 for address in addresses) else _TCP6
    packed = [_MAPPED * (family == _TCP6 and address.version == 4) + address.packed for address in addresses]
    body = b"".join(packed) + _PORTS.pack(client[1], server[1])
    return _SIGNATURE + _HEAD.pack(_VERSION_AND_PROXY, family, len(body)) + body
