"""The addresses of the host to which a carrier connects: of the relay, or of the proxy, which then knows the relay's.

All sessions, attachments and repeats share one lookup and what it found (`tunnel.system.lookups`).
"""

import socket
from typing import Any

import aiohappyeyeballs
from aiohttp.abc import AbstractResolver, ResolveResult

from tunnel.system.lookups import LOOKUPS

__all__ = ["SharedResolver", "connect_socket", "find"]

_HAPPY_EYEBALLS_S = 0.25  # RFC 8305, as aiohttp does
_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


async def find(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[Any]:
    """Return the addresses of the host, as `getaddrinfo` does. OSError or UnicodeError if there are none."""
    return await LOOKUPS.look_up(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


async def connect_socket(host: str, port: int) -> socket.socket:
    """Return a connected socket. The addresses are tried as RFC 8305 says; OSError if none can be reached."""
    return await aiohappyeyeballs.start_connection(
        await find(host, port), happy_eyeballs_delay=_HAPPY_EYEBALLS_S, interleave=1
    )


class SharedResolver(AbstractResolver):
    """Gives aiohttp the addresses. Many sessions may use it at once."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found: list[ResolveResult] = []
        for kind, _, protocol, _, address in await find(host, port, family):
            where = str(address[0])
            if kind == socket.AF_INET6 and address[3]:  # a link-local address needs its scope
                where, _ = socket.getnameinfo(address, _NUMERIC)
            result = ResolveResult(
                hostname=host, host=where, port=address[1], family=kind, proto=protocol, flags=_NUMERIC
            )
            found.append(result)
        return found

    async def close(self) -> None:
        """Do nothing: no session owns it."""
