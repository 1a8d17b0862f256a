"""One HTTP request from a person without the tunnel, which is checked and then written again for the service.

A connection carries one request; the header `Connection: close` says so to the service. The request is parsed to its
end, and further bytes of the client reach the service only after a switch to WebSocket. Otherwise the service could
take them for another request, with a forged address of the client or for another service.
"""

import h11

__all__ = ["BadRequest", "PublicRequest"]

_HEAD_BYTES_MAX = 16 * 1024  # nginx has 8 KiB for each line and 32 KiB for all
_TEXT_LETTERS_MAX = 200
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"})
# Claims about the client that services believe because only a proxy makes them (PROTOCOL 2.11): any name with one of
# these words, and the names that have none of them.
_CLAIM_WORDS = frozenset(
    b"forwarded forward forwarder ip ips ipv4 ipv6 clientip realip remoteip socketip userip addr ipaddress".split()
)
_CLAIMS = frozenset(
    b"x-envoy-external-address cloudfront-viewer-address x-coming-from x-host x-original-host x-http-host-override "
    b"x-scheme x-url-scheme front-end-https x-arr-ssl x-original-url x-rewrite-url remote-user x-remote-user "
    b"x-auth-request-user x-authenticated-user x-webauth-user client-cert x-client-cert x-arr-clientcert proxy".split()
)
_TLS_CLAIMS = (b"ssl-client-", b"x-ssl-client-", b"x-amzn-mtls-")  # of a certificate that a proxy has checked
_FOLD = bytes(byte if bytes([byte]).isalnum() else ord("-") for byte in range(256))
_CONNECT = b"CONNECT"
_WEBSOCKET = b"websocket"  # other protocols, such as h2c, would let the client send requests that are not parsed here


class BadRequest(Exception):
    """The request is refused: the status, and the text for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class PublicRequest:
    """Parses a request. `feed` returns what the service gets for the bytes that have come."""

    def __init__(self, client: str, scheme: str) -> None:
        self.host = ""  # without the port, in lower case; empty until the head has come
        self.is_complete = False
        self.is_upgrade = False  # to WebSocket: what follows the head is not HTTP
        self._client = client
        self._scheme = scheme
        self.is_chunked = False  # the body can consist of tiny chunks, each of which costs time to parse
        self._fed = 0  # bytes
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)

    @property
    def trailing(self) -> bytes:
        """The bytes that came after the end of the request."""
        return self._parser.trailing_data[0]

    def feed(self, data: bytes) -> bytes:
        """Take more bytes, at least one. Raise BadRequest if the request must not reach a service."""
        if self.is_complete:
            return b""
        self._fed += len(data)
        head, body = b"", bytearray()
        try:
            self._parser.receive_data(data)
            while True:
                event = self._parser.next_event()
                if isinstance(event, h11.Request):
                    if self._fed - len(self.trailing) > _HEAD_BYTES_MAX:  # h11 limits only heads that are not whole
                        raise BadRequest(431, f"the head of the request has more than {_HEAD_BYTES_MAX} bytes")
                    head = self._head(event)
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self.is_complete = True
                    return head + self._framed(body) + (b"0\r\n\r\n" if self.is_chunked else b"")
                else:
                    return head + self._framed(body)
        except h11.RemoteProtocolError as error:
            # The text of the error quotes the input.
            raise BadRequest(error.error_status_hint, str(error)[:_TEXT_LETTERS_MAX]) from None

    def _head(self, request: h11.Request) -> bytes:
        if request.method == _CONNECT:
            raise BadRequest(405, "this is no proxy")
        if not request.target.startswith((b"/", b"*")):
            raise BadRequest(400, "the target of the request must be a path")
        headers = dict(request.headers)
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise BadRequest(400, "a request may have Transfer-Encoding or Content-Length, but not both")
        if b"host" not in headers:
            raise BadRequest(400, "the header Host is missing")
        host = headers[b"host"]
        self.host = _name(host)
        self.is_chunked = b"transfer-encoding" in headers
        named = {
            _folded(word.strip())
            for name, value in request.headers
            if name == b"connection"
            for word in value.split(b",")
        }
        has_body = self.is_chunked or headers.get(b"content-length", b"0").strip(b"0") != b""
        upgrade = headers.get(b"upgrade", b"").strip().lower()
        self.is_upgrade = b"upgrade" in named and upgrade == _WEBSOCKET and not has_body
        hop_by_hop = _HOP_BY_HOP | (named - _FRAMING)
        lines = [b"%s %s HTTP/1.1" % (request.method, request.target)]
        lines += [
            b"%s: %s" % (name, value)
            for name, value in request.headers.raw_items()
            if not _is_dropped(name, hop_by_hop)
        ]
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket" if self.is_upgrade else b"Connection: close")
        lines.append(b"X-Forwarded-For: %s" % self._client.encode())
        lines.append(b"X-Forwarded-Proto: %s" % self._scheme.encode())
        lines.append(b"X-Forwarded-Host: %s" % host)
        return b"\r\n".join([*lines, b"", b""])

    def _framed(self, data: bytearray) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if self.is_chunked and data else bytes(data)


def _name(host: bytes) -> str:
    """Return the name in a Host header, without its port."""
    text = host.decode("ascii", "replace").strip().lower()
    name, colon, port = text.rpartition(":")
    return (name if colon and port.isdigit() else text).removesuffix(".")


def _is_dropped(name: bytes, hop_by_hop: frozenset[bytes]) -> bool:
    """Return whether the service must not get this header, which concerns one hop or could be forged."""
    plain = _folded(name)
    return (
        plain in hop_by_hop
        or plain in _CLAIMS
        or not _CLAIM_WORDS.isdisjoint(plain.split(b"-"))
        or plain.startswith(_TLS_CLAIMS)
        or (plain.rstrip(b"-") in _FRAMING and plain != name.lower())  # of the request that the service would see
    )


def _folded(name: bytes) -> bytes:
    """Return a header's name as an application sees it that runs under CGI, WSGI or the like.

    Such an application cannot tell capital letters from small ones, nor an underscore, a dot or the like from a hyphen.
    """
    return name.lower().translate(_FOLD)
