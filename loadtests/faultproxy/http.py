"""HTTP/1.1 on a stream: h11 for the syntax, and the changes that a proxy makes to heads (RFC 9110, 7.6)."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

import h11

from loadtests.faultproxy.grammar import parse_address
from loadtests.faultproxy.stream import Stream

__all__ = [
    "ClientError",
    "HttpSide",
    "SideError",
    "Target",
    "UpstreamError",
    "authority",
    "body_length",
    "end_to_end",
    "forwarded_request",
    "request_target",
    "wants_upgrade",
    "with_length",
]

HEAD_BYTES_MAX = 64 * 1024
HTTP_PORT = 80

Header = tuple[bytes, bytes]
Target = tuple[str, int]

# Headers for a single hop, besides those that Connection lists. Transfer-Encoding is among them because the proxy
# frames bodies again.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization te trailer transfer-encoding upgrade".split()
)


class SideError(Exception):
    """A side of the proxy failed: its connection broke, or it sent invalid HTTP.

    `status` is the status to answer invalid HTTP with; 0 if the connection broke.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class ClientError(SideError):
    """The client's side failed."""


class UpstreamError(SideError):
    """The upstream side failed."""


class HttpSide:
    """One of the two sides of the proxy: server to the client, or client to upstream.

    Failures are raised as ClientError or UpstreamError, according to the side.
    """

    def __init__(self, stream: Stream, role: "type[h11.CLIENT] | type[h11.SERVER]") -> None:
        self.stream = stream
        self.h11 = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._error = UpstreamError if role is h11.CLIENT else ClientError

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next HTTP event, or `PAUSED` if no event can come before the next request."""
        try:
            while True:
                event = self.h11.next_event()
                if isinstance(event, h11.Event) or event is h11.PAUSED:
                    return event
                self.h11.receive_data(await self.stream.read())
        except ConnectionError as error:
            raise self._error(str(error)) from error
        except h11.RemoteProtocolError as error:
            raise self._error(str(error), error.error_status_hint) from error

    async def send(self, event: h11.Event) -> None:
        """Send an event, and wait until there is room for more."""
        for data in self.h11.send_with_data_passthrough(event) or ():
            self.stream.write(data)
        try:
            await self.stream.drain()
        except ConnectionError as error:
            raise self._error(str(error)) from error

    async def next_piece(self) -> bytes | None:
        """Return the next piece of the body whose head was read last; None at its end."""
        event = await self.next_event()
        if isinstance(event, h11.Data):
            return event.data
        assert isinstance(event, h11.EndOfMessage)  # h11 raises an error for a message that breaks off
        return None

    async def collect(self, size_max: int) -> bytes | None:
        """Read and return the whole body; return None, with all of it discarded, if it is larger than `size_max`."""
        pieces: list[bytes] = []
        size = 0
        while (piece := await self.next_piece()) is not None:
            size += len(piece)
            if size <= size_max:
                pieces.append(piece)
        return b"".join(pieces) if size <= size_max else None

    async def discard(self) -> None:
        """Read and discard the rest of the body."""
        while self.h11.their_state is h11.SEND_BODY and await self.next_piece() is not None:
            pass

    @property
    def can_go_on(self) -> bool:
        """Whether both messages are complete and the connection may carry the next exchange."""
        return self.h11.our_state is h11.DONE and self.h11.their_state is h11.DONE and not self.stream.has_ended

    def leave_http(self) -> None:
        """After a switch of protocols, give bytes that h11 read ahead back to the stream."""
        self.stream.unread(self.h11.trailing_data[0])


def _values(headers: Iterable[Header], name: bytes) -> list[bytes]:
    """Return the elements of a header whose value is a list, in lower case."""
    return [part.strip().lower() for key, value in headers if key.lower() == name for part in value.split(b",")]


def end_to_end(headers: Iterable[Header]) -> list[Header]:
    """Return the headers to forward, without Content-Length if Transfer-Encoding overrides it."""
    kept = list(headers)
    dropped = _HOP_BY_HOP.union(_values(kept, b"connection"))
    if _values(kept, b"transfer-encoding"):
        dropped = dropped | {b"content-length"}
    return [(name, value) for name, value in kept if name.lower() not in dropped]


def with_length(headers: Iterable[Header], length: int | None) -> list[Header]:
    """Return the headers with the framing for a body of this length, or for a chunked body if `length` is None."""
    others = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    framing = (b"Transfer-Encoding", b"chunked") if length is None else (b"Content-Length", b"%d" % length)
    return [*others, framing]


def body_length(headers: Sequence[Header]) -> int | None:
    """Return the length that the head declares: Content-Length; None if the body is chunked; 0 without either.

    A response that declares no length may have a body that ends with the connection; the caller must handle that.
    """
    if _values(headers, b"transfer-encoding"):
        return None
    return int(next(iter(_values(headers, b"content-length")), b"0"))


def wants_upgrade(request: h11.Request) -> bool:
    """Return whether the client asks to switch protocols."""
    headers = request.headers.raw_items()
    return b"upgrade" in _values(headers, b"connection") and bool(_values(headers, b"upgrade"))


def request_target(request: h11.Request, upstream: Target | None) -> tuple[Target | None, bytes]:
    """Return the server for the request (None if there is none), and the request target to send to it.

    An absolute URL is a request to a forward proxy; a path is one to a reverse proxy. CONNECT names host and port.
    """
    text = request.target.decode("latin-1")
    try:
        if request.method == b"CONNECT":
            return parse_address(text), request.target
        if request.target.startswith(b"/") or request.target == b"*":
            return upstream, request.target
        url = urlsplit(text)
        if url.scheme.lower() != "http" or not url.hostname:
            return None, request.target
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return (url.hostname, HTTP_PORT if url.port is None else url.port), path.encode("latin-1")
    except ValueError:
        return None, request.target


def forwarded_request(
    request: h11.Request, target: Target, path: bytes, *, length: int | None, upgrade: bool, expect: bool
) -> h11.Request:
    """Return the head to send upstream, for a body of this length, or for a chunked body if `length` is None."""
    raw = request.headers.raw_items()
    headers = end_to_end(raw)
    if not expect:
        headers = [(name, value) for name, value in headers if name.lower() != b"expect"]
    if length != body_length(headers):
        headers = with_length(headers, length)
    if upgrade:
        headers += [(b"Connection", b"Upgrade"), *((name, value) for name, value in raw if name.lower() == b"upgrade")]
    # An absolute URL overrides Host (RFC 9112, 3.2.2); an HTTP/1.0 request may lack Host.
    if path != request.target or not _values(headers, b"host"):
        others = [(name, value) for name, value in headers if name.lower() != b"host"]
        headers = [(b"Host", authority(target).encode("latin-1")), *others]
    return h11.Request(method=request.method, target=path, headers=headers)


def authority(target: Target) -> str:
    """Return host and port as in a URL, without the port if it is 80."""
    host = f"[{target[0]}]" if ":" in target[0] else target[0]
    return host if target[1] == HTTP_PORT else f"{host}:{target[1]}"
