"""Connections through a proxy that may ask for credentials: CONNECT to a relay with TLS, else plain requests."""

import asyncio
import base64
import contextlib
import re
import ssl
from collections.abc import Callable
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict

from tunnel.carriers.dialing.challenges import Challenge, Conversation, Introduction, parse_challenges
from tunnel.carriers.dialing.names import connect_socket
from tunnel.carriers.dialing.proxies import Proxy
from tunnel.exchange import quoted
from tunnel.ground.printable import printable

__all__ = ["ConnectConnector", "ProxyConnection", "introduce"]

_TRIES = 4  # the first request, the answer to the challenge, and two more for stale nonces
_HEAD_BYTES_MAX = 64 * 1024
_BODY_BYTES_MAX = 1024 * 1024  # after a refusal with a longer body, the connection is not used again
_PASSED = (101, 200)  # a proxy may answer anything else before it has looked at the credentials
_HEADER = "Proxy-Authorization"
_STATUS = re.compile("[1-9][0-9][0-9]")
_AGAIN_S = 5.0  # for the second CONNECT; the failure of the first one is known, and must not wait for ever
_PAGE_S = 1.0  # for a page in place of the tunnel, which a proxy has at hand
_AT_ONCE_S = 0.2  # the same, before we have sent anything: what is sent then may end in a reset that loses the page
_PAGE_BYTES = 16 * 1024
_ANSWERED = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")
# A server that speaks plain HTTP at the relay's port answers a TLS handshake so; a proxy's page has another status.
_UNREADABLE = (b"400", b"405", b"408", b"414", b"431", b"501", b"505")
_LENGTH = re.compile("[0-9]{1,9}")  # int() refuses thousands of digits


def introduce(present: Callable[[], Introduction]) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that answers a proxy's 407 to plain requests, with the introduction that `present` returns.

    It raises ClientHttpProxyError, with advice, if it cannot.
    """

    async def middleware(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        introduction = present()
        for tries_left in reversed(range(_TRIES)):
            sent = introduction.header(request.method, str(request.url))
            if sent is not None:
                request.headers[_HEADER] = sent
            response = await handler(request)
            if response.status != 407:
                if response.status in _PASSED:
                    introduction.on_passed(sent)
                return response
            response.close()
            challenges = parse_challenges(response.headers.getall("Proxy-Authenticate", []))
            if not tries_left or not introduction.on_challenged(challenges, sent):
                raise _refusal(response.request_info, 407, introduction.refusal or introduction.advice(challenges))
        raise AssertionError("the last try returns or raises")

    return middleware


def _refusal(
    info: aiohttp.RequestInfo, status: int, message: str, headers: "CIMultiDict[str] | None" = None
) -> aiohttp.ClientHttpProxyError:
    return aiohttp.ClientHttpProxyError(info, (), status=status, message=message, headers=headers)


class ConnectConnector(aiohttp.BaseConnector):
    """Opens connections to a relay with TLS, each through its own CONNECT. The proxy sees only host and port."""

    def __init__(
        self,
        proxy: Proxy,
        present: Callable[[], Introduction],
        user_agent: Callable[[], str],
        tls: ssl.SSLContext,
        proxy_tls: ssl.SSLContext | None,
        *,
        reuse: bool = True,
    ) -> None:
        super().__init__(limit=0, force_close=not reuse)
        self._proxy = proxy
        self._present = present
        self._user_agent = user_agent
        self._tls = tls
        self._proxy_tls = proxy_tls

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own interface
    ) -> ResponseHandler:
        host, port = req.url.host or "", req.url.port or 443
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        dialogue = await self._ask(req, target)
        loop = asyncio.get_running_loop()
        name = req.server_hostname or host
        protocol: ResponseHandler = self._factory()
        try:
            transport = await loop.start_tls(dialogue.transport, protocol, self._tls, server_hostname=name)
        except (ssl.CertificateError, ssl.SSLError, OSError) as error:
            dialogue.transport.abort()
            if not isinstance(error, ssl.CertificateError) and (page := await self._page(req, target, name)):
                raise _refusal(req.request_info, 200, page) from error
            raise _tls_failure(req.connection_key, error) from error
        except BaseException:
            dialogue.transport.abort()
            raise
        if transport is None:
            raise ConnectionResetError("the connection ended during the TLS handshake")
        protocol.connection_made(transport)
        return protocol

    async def _page(self, req: aiohttp.ClientRequest, target: str, name: str) -> str:
        """After a TLS handshake has failed, find out whether the proxy sends a page in place of the relay's answer.

        Return what the page says, or an empty text. It takes another CONNECT, because TLS has consumed the first one.
        """
        hello = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLError):  # it wants an answer, or cannot even begin
            self._tls.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=name).do_handshake()
        try:
            async with asyncio.timeout(_AGAIN_S):
                dialogue = await self._ask(req, target)
        except (aiohttp.ClientError, OSError):  # includes TimeoutError
            return ""
        try:
            heard = await dialogue.read_page(_AT_ONCE_S)
            if not heard:
                dialogue.transport.write(hello.read())
                heard = await dialogue.read_page(_PAGE_S)
            return _page_in(heard)
        finally:
            dialogue.transport.abort()

    async def _ask(self, req: aiohttp.ClientRequest, target: str) -> "ProxyConnection":
        """Return a connection through the proxy to the target. Raise ClientHttpProxyError if the proxy refuses."""
        introduction = self._present()
        for tries_left in reversed(range(_TRIES)):
            dialogue = await self._dial(req)
            try:
                status, reason, challenges, sent = await self._connect(req, dialogue, introduction, target)
            except BaseException:
                dialogue.transport.abort()
                raise
            if status == 200:
                introduction.on_passed(sent)
                return dialogue
            dialogue.transport.abort()
            if status != 407:
                raise _refusal(req.request_info, status, reason, dialogue.headers)
            if not tries_left or not introduction.on_challenged(challenges, sent):
                raise _refusal(req.request_info, 407, introduction.refusal or introduction.advice(challenges))
        raise AssertionError("the last try returns or raises")

    async def _dial(self, req: aiohttp.ClientRequest) -> "ProxyConnection":
        proxy = self._proxy.url
        try:
            sock = await connect_socket(proxy.host or "", proxy.port or 0)
            name = (proxy.host or "") if self._proxy_tls is not None else None
            _, dialogue = await asyncio.get_running_loop().create_connection(
                ProxyConnection, sock=sock, ssl=self._proxy_tls, server_hostname=name
            )
        except (ssl.CertificateError, ssl.SSLError) as error:
            key = req.connection_key._replace(host=proxy.host or "", port=proxy.port or 0)
            raise _tls_failure(key, error) from error
        except OSError as error:
            raise aiohttp.ClientProxyConnectionError(req.connection_key, error) from error
        return dialogue

    async def _connect(
        self, req: aiohttp.ClientRequest, dialogue: "ProxyConnection", introduction: Introduction, target: str
    ) -> tuple[int, str, list[Challenge], str | None]:
        """Send CONNECT; return status, reason and challenges of the answer, and the credentials that were sent.

        A conversation of several messages runs to its end here.
        """
        sent = introduction.header("CONNECT", target)
        talk = introduction.conversation() if sent is None else None
        if talk is None:
            return *await dialogue.ask(target, sent, self._user_agent()), sent
        scheme, speaker = talk
        heard: str | None = None
        while True:
            try:
                said = await _say(speaker, heard)
            except Exception as error:  # pyspnego has many kinds of errors
                text = f"{scheme} authentication with the proxy failed: {' '.join(str(error).split())}"
                raise _refusal(req.request_info, 407, text) from error
            sent = f"{scheme} {said}"
            if heard is not None and not said:
                return 407, "", [], sent
            status, reason, challenges = await dialogue.ask(target, sent, self._user_agent())
            heard = next((offer.data for offer in challenges if offer.scheme == scheme.lower()), "")
            if status != 407 or not heard or not dialogue.goes_on:
                return status, reason, challenges, sent


async def _say(speaker: Conversation, heard: str | None) -> str:
    """Return our next message in base64; empty if there is none. It runs in a thread, because reading the operating
    system's tickets may block."""
    data = None if heard is None else base64.b64decode(heard)
    said = await asyncio.to_thread(speaker.step, data)
    return base64.b64encode(said or b"").decode("ascii")


def _tls_failure(key: ConnectionKey, error: Exception) -> aiohttp.ClientConnectorError:
    if isinstance(error, ssl.CertificateError):
        return aiohttp.ClientConnectorCertificateError(key, error)
    if isinstance(error, ssl.SSLError):
        return aiohttp.ClientConnectorSSLError(key, error)
    assert isinstance(error, OSError)
    return aiohttp.ClientConnectorError(key, error)


def _page_in(heard: bytes) -> str:
    """Return what a proxy's page says; empty if these bytes are none, or a server's answer to a TLS handshake."""
    answered = _ANSWERED.match(heard)
    if answered is not None and answered[1] not in _UNREADABLE:
        return quoted(heard.partition(b"\r\n\r\n")[2])
    return quoted(heard) if heard.lstrip()[:1] == b"<" else ""


def _encoded(text: str) -> bytes:
    """Return the bytes of a request. A realm of the proxy goes back as it came (Latin-1), unless a user's name has
    letters beyond that."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


class ProxyConnection(asyncio.Protocol):
    """A connection to a proxy while CONNECT is negotiated, before TLS takes it over."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader(limit=_HEAD_BYTES_MAX)
        self.goes_on = True  # another CONNECT may follow on this connection
        self.headers: CIMultiDict[str] = CIMultiDict()  # of the newest answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        self._reader.set_transport(self.transport)  # stops reading while too much waits

    def data_received(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.feed_eof()

    async def ask(self, target: str, sent: str | None, user_agent: str = "") -> tuple[int, str, list[Challenge]]:
        """Send CONNECT; return status, reason and challenges. Raise ConnectionError if the answer is not HTTP."""
        lines = [
            f"CONNECT {target} HTTP/1.1",
            f"Host: {target}",
            "Proxy-Connection: keep-alive",
        ]
        if user_agent:
            lines.append(f"User-Agent: {user_agent}")
        if sent is not None:
            lines.append(f"{_HEADER}: {sent}")
        self.transport.write(_encoded("\r\n".join([*lines, "", ""])))
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the proxy closed the connection instead of answering CONNECT") from None
        except asyncio.LimitOverrunError:
            raise ConnectionError("the proxy answered CONNECT with endless headers") from None
        first, *rest = head.decode("latin-1").split("\r\n")
        version, _, tail = first.partition(" ")
        code, _, reason = tail.partition(" ")
        if not version.startswith("HTTP/1.") or not _STATUS.fullmatch(code):
            raise ConnectionError("the proxy answered CONNECT with something that is not HTTP")
        headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        self.headers = CIMultiDict(headers)
        if code != "200":
            self.goes_on = version == "HTTP/1.1" and await self._skip_body(dict(headers))
        return (
            int(code),
            printable(reason),
            parse_challenges(value for name, value in headers if name == "proxy-authenticate"),
        )

    async def read_page(self, seconds: float) -> bytes:
        """Return what comes after the answer to CONNECT until the connection ends, for at most `seconds`."""
        heard = bytearray()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(heard) < _PAGE_BYTES and (data := await self._reader.read(_PAGE_BYTES)):
                    heard += data
        return bytes(heard)

    async def _skip_body(self, headers: dict[str, str]) -> bool:
        """Read the body of a refusal. Return whether another request may follow on this connection."""
        if "close" in f"{headers.get('connection', '')} {headers.get('proxy-connection', '')}".lower():
            return False
        length = headers.get("content-length", "")
        if not _LENGTH.fullmatch(length) or int(length) > _BODY_BYTES_MAX:
            return False
        try:
            await self._reader.readexactly(int(length))
        except asyncio.IncompleteReadError:
            return False
        return True
