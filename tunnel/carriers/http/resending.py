"""Further requests on an open connection, without what only the first one needs.

aiohttp builds each request anew: its URL, headers, cookies, timeouts, and a task that writes the body. For the requests
of an exchange, nothing of that changes but the body. So the first request of a connection goes through aiohttp's
session, and the later ones repeat its head, byte by byte, on a connection of the same pool. aiohttp's connector still
opens, keeps and ends the connections, and its parser still reads the answers.
"""

from typing import Self

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from multidict import CIMultiDictProxy

from tunnel.carriers.dialing.dial_secrets import DialSecrets
from tunnel.carriers.dialing.dialing import READ_BUFFER_BYTES
from tunnel.carriers.exchanging import Outcomes

__all__ = ["RawAnswer", "Resending"]

_SMALL_BYTES = 16 * 1024  # the connection takes such a body at once, so that nothing must wait for it
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
_SWITCHING = 101


class RawAnswer:
    """An answer whose head has arrived."""

    def __init__(
        self,
        connection: Connection,
        status: int,
        headers: CIMultiDictProxy[str],
        content: aiohttp.StreamReader,
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._connection = connection

    def release(self) -> None:
        """Let the connection be used again, since the whole answer has been read."""
        self._connection.release()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


class Resending:
    """The request that a session has sent, ready to be sent with other bodies of the same type."""

    def __init__(self, request: aiohttp.ClientRequest, connector: aiohttp.BaseConnector, secrets: DialSecrets) -> None:
        self._request = request
        self._connector = connector
        self._secrets = secrets
        self._kind = request.headers["Content-Type"]
        before = [f"{request.method} {request.url.raw_path_qs} HTTP/1.1"]
        after: list[str] = []
        lines = before
        for name, value in request.headers.items():
            if name.lower() == "content-length":
                before.append(f"{name}: ")
                lines = after
            else:
                lines.append(f"{name}: {value}")
        self._before = "\r\n".join(before).encode()
        self._after = "\r\n".join(["", *after, "", ""]).encode()

    @classmethod
    def of(
        cls, request: aiohttp.ClientRequest | None, connector: aiohttp.BaseConnector | None, secrets: DialSecrets
    ) -> Self | None:
        """Return a request to repeat, or None if each request needs a head of its own.

        Plain requests through a proxy do: their credentials may be for a single use.
        """
        if request is None or connector is None or (request.proxy and not request.is_ssl()):
            return None
        return cls(request, connector, secrets)

    def fits(self, kind: str, body: bytes, secrets: DialSecrets) -> bool:
        """Return whether a body of this type can leave under these secrets."""
        return len(body) <= _SMALL_BYTES and kind == self._kind and secrets is self._secrets

    async def send(self, body: bytes, request_id: int, outcomes: Outcomes) -> RawAnswer:
        """Send a body, and return the answer as soon as its head has arrived. Errors are those of a session."""
        connection = await self._connect()
        try:
            protocol = connection.protocol
            transport = protocol.transport if protocol is not None else None
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(read_until_eof=True, auto_decompress=False, read_bufsize=READ_BUFFER_BYTES)
            outcomes.on_opened(request_id)
            transport.write(b"%b%d%b%b" % (self._before, len(body), self._after, body))
            outcomes.on_sent(len(body))
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != _SWITCHING:  # interim responses
                message, content = await protocol.read()
        except HttpProcessingError as error:
            connection.close()
            raise aiohttp.ClientResponseError(
                self._request.request_info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        except BaseException:
            connection.close()
            raise
        return RawAnswer(connection, message.code, message.headers, content)

    async def _connect(self) -> Connection:
        """Return the connection of before; if it has ended, another one, as a session would open it."""
        try:
            return await self._connector.connect(self._request, [], _TIMEOUT)
        except aiohttp.ClientError:
            raise
        except OSError as error:
            raise aiohttp.ClientOSError(*error.args) from error
