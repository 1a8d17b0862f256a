"""The HTTP requests of a forward proxy and their answers: CONNECT, and requests with an absolute URL. No I/O.

A request with an absolute URL is rewritten for its target, which is asked to close the connection after its answer. So
one connection carries one request, and answers need not be parsed.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tunnel_client.proxy.requests import MalformedError, Parsed, ProxyRequest, Why

__all__ = ["HttpRequest", "parse_http"]

HEAD_BYTES_MAX = 64 * 1024
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")  # no control characters, because the server would receive them
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_VERSION = re.compile(rb"HTTP/1\.[01]")
# Fields that do not go on: those between the client and this proxy (RFC 9110, 7.6.1), and Host, which follows the URL.
_HOP = frozenset(b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate host".split())
_STATUS = {
    Why.DENIED: b"403 Forbidden",
    Why.TIMED_OUT: b"504 Gateway Timeout",
    Why.BUSY: b"503 Service Unavailable",
}
_BAD_GATEWAY = b"502 Bad Gateway"
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f]+")  # a line break would let the text add header fields
_PHRASE_BYTES_MAX = 400


@dataclass(frozen=True, slots=True)
class HttpRequest(ProxyRequest):
    """A request over HTTP. It is a CONNECT if `early` is empty."""

    def success_answer(self) -> bytes:
        return b"" if self.early else b"HTTP/1.1 200 Connection established\r\n\r\n"

    def refusal_answer(self, reason: Why, text: str) -> bytes:
        return _answer(_STATUS.get(reason, _BAD_GATEWAY), text)


def parse_http(data: bytes) -> Parsed | None:
    """Parse a request; return None while its head is incomplete. Raises MalformedError."""
    end = data.find(b"\r\n\r\n")
    if max(end, 0 if end >= 0 else len(data)) > HEAD_BYTES_MAX:
        raise MalformedError(
            "the head of a request is longer than 64 KiB",
            _answer(b"431 Request Header Fields Too Large", "the head is longer than 64 KiB"),
        )
    if end < 0:
        return None
    line, *lines = bytes(data[:end]).split(b"\r\n")
    parts = line.split(b" ")
    patterns = _TOKEN, _TARGET, _VERSION
    if len(parts) != 3 or not all(pattern.fullmatch(part) for pattern, part in zip(patterns, parts, strict=True)):
        raise _bad("this is not a request of HTTP/1.1")
    method, target, version = parts
    headers = [_header(text) for text in lines]
    if method == b"CONNECT":
        return Parsed(end + 4, HttpRequest(*_authority(target, None)))
    return Parsed(end + 4, _absolute(method, target, version, headers))


def _absolute(method: bytes, target: bytes, version: bytes, headers: list[tuple[bytes, bytes]]) -> HttpRequest:
    if target.startswith(b"/"):
        raise _bad("this is a proxy: tell your client to use it as one, as in http_proxy=http://127.0.0.1:PORT")
    try:
        url = urlsplit(target.decode("ascii"))
    except ValueError:
        raise _bad("the URL is malformed") from None
    if url.scheme.lower() != "http" or not url.netloc:
        raise _bad("this proxy fetches only http:// URLs: a client must use CONNECT for others")
    host, port = _authority(url.netloc.rpartition("@")[2].encode(), 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    if method == b"OPTIONS" and not url.path and not url.query:
        path = "*"  # RFC 9112, 3.2.4
    named = {
        name.strip().lower() for key, value in headers if key.lower() == b"connection" for name in value.split(b",")
    }
    kept = [(key, value) for key, value in headers if key.lower() not in _HOP | named]
    head = b"".join(
        [
            b"%s %s %s\r\n" % (method, path.encode(), version),
            b"Host: %s\r\n" % url.netloc.rpartition("@")[2].encode(),
            *(b"%s: %s\r\n" % header for header in kept),
            b"Connection: close\r\n\r\n",
        ]
    )
    return HttpRequest(host, port, early=head, body_bytes=_body_bytes(kept))


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise _bad("a header field is malformed")
    return name, value.strip(b" \t")


def _authority(text: bytes, default: int | None) -> tuple[str, int]:
    """Return host and port. Raises MalformedError."""
    host, port = text.decode("latin-1"), ""
    if not host.endswith("]") and ":" in host:
        host, _, port = host.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else (default if not port else None)
    if not bare or number is None or not 0 < number < 65536 or not bare.isascii() or (":" in bare and bare == host):
        raise _bad("the target is not HOST:PORT")
    return bare, number


def _body_bytes(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body, or None if it comes in chunks, whose end the target recognises."""
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        if lengths:
            raise _bad("the body has both a Content-Length and a Transfer-Encoding")
        return None
    if not lengths:
        return 0
    (length,) = lengths if len(lengths) == 1 else (b"",)
    if not length.isdigit() or len(length) > 18:
        raise _bad("the Content-Length is not one number")
    return int(length)


def _bad(text: str) -> MalformedError:
    return MalformedError(text, _answer(b"400 Bad Request", text))


def _answer(status: bytes, text: str) -> bytes:
    """Return an answer that ends the connection. The reason phrase has the text, too: many clients show only that."""
    phrase = _UNPRINTABLE.sub(" ", text).strip().encode("ascii", "replace")
    if len(phrase) > _PHRASE_BYTES_MAX:
        phrase = phrase[: _PHRASE_BYTES_MAX - 3] + b"..."
    if phrase:
        status += b": " + phrase
    body = f"{text}\n".encode()
    return (
        b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n"
        b"Cache-Control: no-store\r\n\r\n%s" % (status, len(body), body)
    )
