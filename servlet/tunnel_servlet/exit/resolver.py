"""Name resolution at the exit: asks the system's resolver, once per connection."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, TypeAlias

from tunnel_servlet.access.addresses import IPAddress

__all__ = ["Resolve", "resolve"]

Resolve: TypeAlias = Callable[[str, int], Coroutine[Any, Any, list[IPAddress]]]


_THREADS_MAX = 32


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads for lookups: asyncio's own are fewer, and other work needs them."""
    return ThreadPoolExecutor(_THREADS_MAX, "resolve")


async def resolve(host: str, port: int) -> list[IPAddress]:
    """Return all addresses of a name, in the order of the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_threads(), partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(ip_address(str(address[0]).partition("%")[0]) for *_, address in found))
