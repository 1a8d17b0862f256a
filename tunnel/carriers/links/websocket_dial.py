"""Opens a websocket to the relay: `GET .../link` with `Upgrade: websocket` (PROTOCOL 8.5)."""

import aiohttp
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.halves.websocket_transport import WebSocketTransport
from tunnel.carriers.links.upgrade import UpgradeRefusedError, refusal_of
from tunnel.wire import LINK_HEADER_SIZE, PACKET_SIZE_MAX

__all__ = ["OpenedWebSocket", "open_websocket"]

_MESSAGE_BYTES_MAX = PACKET_SIZE_MAX + LINK_HEADER_SIZE + 1  # aiohttp refuses a message of exactly this size


class OpenedWebSocket:
    """A websocket that the relay, or something before it, has accepted. Only a message shows that the path works."""

    early = b""  # aiohttp keeps what came with the 101

    def __init__(self, session: aiohttp.ClientSession, websocket: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self.transport = WebSocketTransport(websocket)
        self._session = session

    def on_lost(self, error: Exception | None) -> None:
        """Do nothing: aiohttp still reads from the connection, and learns of its end."""

    async def close(self) -> None:
        """Close the websocket and its session."""
        self.transport.abort()
        await self.transport.ended
        await self._session.close()


async def open_websocket(dialing: Dialing) -> OpenedWebSocket:
    """Ask for a websocket. Raise UpgradeRefusedError if the answer is not 101; aiohttp's errors pass through."""
    session = dialing.session(middlewares=(_only_101,))
    try:
        websocket = await session.ws_connect(
            dialing.url("link"),
            headers=dialing.headers,
            proxy=dialing.proxy,
            proxy_headers=dialing.proxy_headers or None,
            autoping=False,
            max_msg_size=_MESSAGE_BYTES_MAX,
        )
        return OpenedWebSocket(session, websocket)
    except BaseException:
        await session.close()
        raise


async def _only_101(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Raise UpgradeRefusedError for any answer but 101: aiohttp would follow a redirect, with the token."""
    response = await handler(request)
    if response.status == 101:
        return response
    try:
        raise UpgradeRefusedError(await refusal_of(response), response.status, response.headers)
    finally:
        response.close()
