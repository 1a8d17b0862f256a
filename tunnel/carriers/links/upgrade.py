"""Turns an HTTP connection into a raw one: sends `GET .../link` with Upgrade, and takes the connection from aiohttp."""

from collections.abc import Mapping

import aiohttp

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.halves.link_protocol import LINK_PROTOCOL
from tunnel.exchange import quoted

__all__ = ["UpgradeRefusedError", "Upgraded", "refusal_of", "upgrade"]

_READ_BYTES = 4096  # of a foreign answer: the title of a page is near its beginning


class UpgradeRefusedError(Exception):
    """The answer, with this status and these headers, was not 101: no link is possible on this path for now."""

    def __init__(self, refusal: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(refusal)
        self.status = status
        self.headers = headers


class Upgraded:
    """A raw connection, taken from aiohttp. `early`: the bytes that arrived together with the 101."""

    def __init__(self, session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> None:
        if response.connection is None:  # aiohttp has read a whole answer: its header says that the connection ends
            raise ConnectionResetError("a hop ended the connection with the answer 101, where a link would begin")
        protocol = response.connection.protocol
        transport = response.connection.transport
        if protocol is None or transport is None:
            raise ConnectionResetError("the connection ended during the upgrade")
        drain = _Drain()
        protocol.set_parser(drain, None)
        self.early = bytes(drain.data)
        self.transport = transport
        self._protocol = protocol
        self._response = response  # kept because it owns the connection
        self._session = session
        self._is_lost = False

    def on_lost(self, error: Exception | None) -> None:
        """Pass the end of the connection on to aiohttp, whose session could not close otherwise.

        The protocol that took the connection over must call this from `connection_lost`.
        """
        self._is_lost = True
        self._protocol.connection_lost(error)
        self._response.close()

    async def close(self) -> None:
        """Close the connection and the session."""
        if not self._is_lost:  # asyncio's transport cannot be aborted once it is lost while closing with bytes to write
            self.transport.abort()
        await self._session.close()


class _Drain:
    """A parser that collects the bytes that aiohttp has read beyond the response."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Do nothing: the protocol handles the end of the connection."""


async def upgrade(dialing: Dialing) -> Upgraded:
    """Request a link. Raise UpgradeRefusedError if the answer is not 101; aiohttp's errors pass through."""
    session = dialing.session()
    try:
        response = await session.get(
            dialing.url("link"),
            headers={**dialing.headers, "Connection": "Upgrade", "Upgrade": LINK_PROTOCOL},
            allow_redirects=False,
            proxy=dialing.proxy,
            proxy_headers=dialing.proxy_headers or None,
        )
        if response.status != 101:
            refusal = await refusal_of(response)
            response.close()
            raise UpgradeRefusedError(refusal, response.status, response.headers)
        return Upgraded(session, response)
    except BaseException:
        await session.close()
        raise


async def refusal_of(response: aiohttp.ClientResponse) -> str:
    """Return what came instead of an upgrade, for people."""
    start = await response.content.read(_READ_BYTES)
    return f"HTTP {response.status} instead of an upgrade: {quoted(start)}"
