"""Name resolution at the exit: addresses from the system's resolver, SRV records from the name servers.

No result is kept: each connection asks again.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, TypeAlias

from tunnel_servlet.access.addresses import IPAddress

__all__ = ["FindRecords", "Resolve", "find_records", "resolve"]

Resolve: TypeAlias = Callable[[str, int], Coroutine[Any, Any, list[IPAddress]]]
FindRecords: TypeAlias = Callable[[str], Coroutine[Any, Any, list[tuple[str, int]]]]

_RECORDS_MAX = 16  # at most this many hosts of one SRV record set are tried

_THREADS_MAX = 32


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads for lookups: asyncio's own may be fewer, and other work needs them."""
    return ThreadPoolExecutor(_THREADS_MAX, "resolve")


async def resolve(host: str, port: int) -> list[IPAddress]:
    """Return all addresses of a name, in the order of the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_threads(), partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(ip_address(str(address[0]).partition("%")[0]) for *_, address in found))


async def find_records(name: str) -> list[tuple[str, int]]:
    """Return the hosts and ports in the SRV records of a name, in the order in which to try them (RFC 2782).

    Raise OSError if the name servers do not answer. For a name without records, the list is empty.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads(), _find_records, name)


def _find_records(name: str) -> list[tuple[str, int]]:
    from dns.exception import DNSException  # here: most exits never need it, and it takes 30 ms to import
    from dns.rdtypes.IN.SRV import SRV
    from dns.resolver import NXDOMAIN, NoAnswer
    from dns.resolver import resolve as ask

    try:
        answer = ask(name, "SRV", search=False)
    except (NXDOMAIN, NoAnswer):
        return []
    except DNSException as error:
        raise OSError(f"the name servers do not answer: {error}") from error
    rows = [] if answer.rrset is None else answer.rrset.processing_order()
    found = [(str(row.target).removesuffix("."), row.port) for row in rows if isinstance(row, SRV)]
    return [(host, port) for host, port in found if host][:_RECORDS_MAX]
