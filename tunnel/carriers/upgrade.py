"""From an HTTP request to a bare connection: `GET .../link` with Upgrade, and what aiohttp needs to let go of it."""

import aiohttp

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.link_protocol import LINK_PROTOCOL

__all__ = ["UpgradeRefusedError", "Upgraded", "upgrade"]

_QUOTE_BYTES = 120  # of a foreign answer, for a person


class UpgradeRefusedError(Exception):
    """Something answered, but not with 101: no link leads through there for now."""


class Upgraded:
    """A connection that speaks HTTP no more. `early`: what came right behind the 101."""

    def __init__(self, session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> None:
        assert response.connection is not None
        protocol = response.connection.protocol
        transport = response.connection.transport
        if protocol is None or transport is None:
            raise ConnectionResetError("the connection ended with the upgrade")
        drain = _Drain()
        protocol.set_parser(drain, None)
        self.early = bytes(drain.data)
        self.transport = transport
        self._protocol = protocol
        self._response = response  # it owns the connection
        self._session = session

    def lost(self, error: Exception | None) -> None:
        """The transport told its protocol, which is ours now, that it is lost: aiohttp waits to hear of it, too."""
        self._protocol.connection_lost(error)
        self._response.close()

    async def close(self) -> None:
        """Free the rest."""
        self.transport.abort()
        await self._session.close()


class _Drain:
    """Takes what aiohttp has read beyond the response."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """The connection's end is told elsewhere."""


async def upgrade(dialing: Dialing) -> Upgraded:
    """Ask for a link. UpgradeRefusedError if something else than 101 is the answer; errors of aiohttp as they come."""
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
            start = await response.content.read(_QUOTE_BYTES)
            response.close()
            text = " ".join(start.decode("utf-8", "replace").split())
            raise UpgradeRefusedError(f"HTTP {response.status} instead of an upgrade: {text}")
        return Upgraded(session, response)
    except BaseException:
        await session.close()
        raise
