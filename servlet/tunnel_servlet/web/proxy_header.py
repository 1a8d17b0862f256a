"""The PROXY header, version 2: tells a service the address of the client before everything else.

https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt
"""

import struct
from ipaddress import ip_address

__all__ = ["proxy_header"]

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_VERSION_AND_PROXY = 0x21
_TCP4, _TCP6 = 0x11, 0x21
_PORTS = struct.Struct("!HH")
_HEAD = struct.Struct("!BBH")


def proxy_header(client: tuple[str, int], server: tuple[str, int]) -> bytes:
    """Return the header for a connection from `client` to `server`, both an address and a port."""
    source, destination = (ip_address(host.partition("%")[0]) for host, _ in (client, server))
    family = _TCP4 if source.version == 4 else _TCP6
    body = source.packed + destination.packed + _PORTS.pack(client[1], server[1])
    return _SIGNATURE + _HEAD.pack(_VERSION_AND_PROXY, family, len(body)) + body
