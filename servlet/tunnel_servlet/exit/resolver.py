"""Name resolution at the exit: asks the system's resolver, once per connection."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TypeAlias

from tunnel_servlet.access.addresses import IPAddress

__all__ = ["Resolve", "resolve"]

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[IPAddress]]]


async def resolve(host: str, port: int) -> list[IPAddress]:
    """Return all addresses of a name, in the order of the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(address[0]).partition("%")[0]) for *_, address in found))
