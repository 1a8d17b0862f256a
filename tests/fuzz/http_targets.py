"""The targets `http`, `admin` and `relay_link`: any bytes through the relay's real HTTP connections.

The first byte of an input chooses the portions in which the others arrive. Promises: an answer is whole, and is 5xx
only on purpose; an unauthenticated client gets one answer; there is at most one line in the log for each request,
never with a traceback or a token; nothing is left when the connection has ended.
"""

from collections.abc import Iterator

from tests.fuzz.checksums import repair_envelope
from tests.fuzz.draw import Draw
from tests.fuzz.http_world import ADMIN_SECRET, ATTACH, TOKEN, HttpWorld
from tests.fuzz.target import Target
from tests.fuzz.wire_end import run_in_loop
from tunnel.carriers.links.dialed_link import hello
from tunnel.wire import (
    ENVELOPE_BYTES,
    Answer,
    Attached,
    Exchange,
    LinkHeader,
    Packet,
    PacketType,
    Status,
    decode_envelope,
    encode_envelope,
    encode_link_header,
    encode_packets,
)

__all__ = ["ADMIN_TARGET", "HTTP_TARGET", "RELAY_LINK_TARGET"]

# The bit of the first byte, above those of the portions, that asks for an open relay, or for an admin request from this
# machine.
_BIT = 8
_HEAD_REQUEST = b"HEAD"
_MARK = b"@TOKEN"  # in an input: a valid token


def _with_token(data: bytes) -> bytes:
    return data.replace(_MARK, TOKEN.encode())


def _http(data: bytes) -> None:
    choice, sent = data[0] if data else 0, _with_token(data[1:])

    async def serve() -> None:
        async with HttpWorld(is_open=bool(choice & _BIT)) as world:
            await world.send(sent, choice)
            if choice & 16:
                world.transport.end()
            world.check(has_head=_HEAD_REQUEST in sent)
        world.check_end()

    run_in_loop(serve)


def _admin(data: bytes) -> None:
    choice, sent = data[0] if data else 0, data[1:]

    async def serve() -> None:
        async with HttpWorld(is_admin=True, peer="127.0.0.1" if choice & _BIT else "192.0.2.1") as world:
            await world.send(sent, choice)
            answers, _ = world.check(has_head=_HEAD_REQUEST in sent)
            drains = [status for status, _, _ in answers if status == 202]
            assert len(drains) == len(world.drained)
            assert not world.drained or choice & _BIT, "a drain request from another machine"
            assert not world.drained or ADMIN_SECRET.encode() in sent, "a drain request without the secret"
        world.check_end()

    run_in_loop(serve)


def _relay_link(data: bytes) -> None:
    """Play a user's link: the upgrade; then a right first message, or bytes of the input with the right magic, length
    and checksum, or nothing; then the rest of the input."""
    draw = Draw(data)
    choice, kind = draw.byte(), draw.below(3)

    async def serve() -> None:
        async with HttpWorld() as world:
            switch = world.relay.host.switch
            attached = await world.attach()
            upgrade = f"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            await world.send(f"{upgrade}Connection: Upgrade\r\nUpgrade: tunnel-link/1\r\n\r\n".encode(), 0)
            first = _first(draw, kind, attached, switch.epoch)
            await world.send(first + draw.rest(), choice)
            answers, rest = world.check()
            assert [status for status, _, _ in answers] == [200, 101]
            _check_link(world, rest, is_right=not kind)
        world.check_end()

    run_in_loop(serve)


def _first(draw: Draw, kind: int, attached: Attached, epoch: int) -> bytes:
    if kind == 0:
        return hello(attached.attachment_id, epoch, attached.generation)
    return repair_envelope(draw.raw(draw.byte())) if kind == 1 else b""


def _check_link(world: HttpWorld, rest: bytes, *, is_right: bool) -> None:
    """Check the answer to a first message: an ANSWER that opens the link, or a STATUS, after which the relay closes."""
    link = world.transport.get_protocol()
    first_bytes = len(getattr(link, "_first", b""))
    assert first_bytes <= 4096 + 1024, f"{first_bytes} bytes of a first message are kept"
    if not rest:
        assert not is_right
        return
    size = ENVELOPE_BYTES + int.from_bytes(rest[8:12], "big")
    message = decode_envelope(rest[:size])
    assert isinstance(message, Answer if is_right else Answer | Status), message
    if isinstance(message, Status):
        assert rest[size:] == b""
        assert world.transport.is_closing()


def _request(line: str, *fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join([line, "Host: localhost", *fields, "", ""]).encode("latin-1") + body


_BEARER = "Authorization: Bearer @TOKEN"
_BINARY = "Content-Type: application/octet-stream"


def _http_seeds() -> Iterator[tuple[str, bytes]]:
    post = "POST /exchange HTTP/1.1"
    right = _request(post, _BEARER, _BINARY, f"Content-Length: {len(ATTACH)}", body=ATTACH)
    ping = b"".join(encode_packets([Packet(PacketType.PING, 1, 2, 0, b"")]))
    exchange = b"".join(encode_envelope(Exchange(bytes(16), 0, 1, 0, 1, 0, 0, 1 << 20, payload=ping)))
    requests = {
        "attach": right,
        "twice": right + right,
        "unknown": _request(post, _BEARER, _BINARY, f"Content-Length: {len(exchange)}", body=exchange),
        "no_token": _request(post, _BINARY, "Content-Length: 0"),
        "odd_token": _request(post, "Authorization: Bearer tnl_\xff\xfe", "Content-Length: 0"),
        "odd_scheme": _request(post, "Authorization: \xc3\x28", "Content-Length: 0"),
        "expect": _request(post, _BEARER, _BINARY, "Expect: 100-continue", "Content-Length: 3", body=b"abc"),
        "odd_expect": _request(post, "Expect: \xff", "Content-Length: 0"),
        "chunked": _request(post, _BEARER, _BINARY, "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n"),
        "cut_chunk": _request(post, _BEARER, _BINARY, "Transfer-Encoding: chunked", body=b"zz\r\nabc"),
        "both_lengths": _request(post, _BEARER, "Transfer-Encoding: chunked", "Content-Length: 3", body=b"0\r\n\r\n"),
        "large": _request(post, _BEARER, _BINARY, "Content-Length: 99999999999999999999"),
        "unfinished": _request(post, _BEARER, _BINARY, "Content-Length: 4000", body=b"abc"),
        "form": _request(
            post, _BEARER, "Content-Type: multipart/form-data; boundary=x", "Content-Length: 3", body=b"--x"
        ),
        "odd_type": _request(post, _BEARER, "Content-Type: multipart/form-data; boundary=\xff", "Content-Length: 0"),
        "gzip": _request(post, _BEARER, _BINARY, "Content-Encoding: gzip", "Content-Length: 1", body=b"\x1f"),
        "role": _request(post, _BEARER, _BINARY, "X-Endpoint-Role: exit", "Content-Length: 0"),
        "earlier_role": _request(post, _BEARER, _BINARY, "Tunnel-Role: exit", "Content-Length: 0"),
        "link": _request("GET /link HTTP/1.1", _BEARER, "Connection: Upgrade", "Upgrade: tunnel-link/1"),
        "link_without": _request("GET /link HTTP/1.1", _BEARER, "Connection: Upgrade", "Upgrade: h2c"),
        "other_path": _request("GET /%ff%00?a=%zz HTTP/1.1"),
        "odd_path": _request("GET /\xff\xfe HTTP/1.1"),
        "absolute": _request("GET http://[:::::]:99999/ HTTP/1.1"),
        "connect": _request("CONNECT x:443 HTTP/1.1"),
        "options": _request("OPTIONS * HTTP/1.1"),
        "head": _request("HEAD /exchange HTTP/1.1"),
        "method": _request("BREW /exchange HTTP/1.1"),
        "version": _request("GET / HTTP/0.9"),
        "odd_field": _request("GET / HTTP/1.1", "a b: c", ": d", "e"),
        "long_field": _request("GET / HTTP/1.1", f"Cookie: {'a' * 3500}"),
        "host": b"GET /link HTTP/1.1\r\nHost: [::1\r\nUpgrade: tunnel-link/1\r\nConnection: Upgrade\r\n\r\n",
        "no_host": b"GET / HTTP/1.1\r\n\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "websocket": _request(
            "GET /link HTTP/1.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: a"
        ),
    }
    for number, (name, raw) in enumerate(requests.items()):
        yield name, bytes([(number % 8) | (_BIT if number % 3 == 0 else 0)]) + raw


def _admin_seeds() -> Iterator[tuple[str, bytes]]:
    for name in ("livez", "readyz", "state", "metrics"):
        yield name, bytes([_BIT]) + _request(f"GET /{name} HTTP/1.1") * 2
    for name, query in (("drain", ""), ("drain_soon", "?timeout=5"), ("drain_odd", "?timeout=\xb2")):
        request = _request(f"POST /drain{query} HTTP/1.1", f"Tunnel-Admin: {ADMIN_SECRET}", "Content-Length: 0")
        yield name, bytes([_BIT]) + request
        yield f"{name}_elsewhere", b"\0" + request
        yield f"{name}_of_a_page", bytes([_BIT]) + request.replace(b"\r\n", b"\r\nOrigin: http://evil.example\r\n", 1)
        yield f"{name}_by_another_name", bytes([_BIT]) + request.replace(b"Host: localhost", b"Host: evil.example")
        yield f"{name}_without_the_secret", bytes([_BIT]) + request.replace(ADMIN_SECRET.encode(), b"1")


def _link_seeds() -> Iterator[tuple[str, bytes]]:
    batch = b"".join(encode_packets([Packet(PacketType.PING, 1, 2, 0, b"")]))
    whole = encode_link_header(LinkHeader(1, 0, len(batch))) + batch
    yield "right", bytes([0, 0]) + whole
    yield "right_slowly", bytes([1, 0]) + whole
    yield "empty_batch", bytes([0, 0]) + encode_link_header(LinkHeader(1, 0, 0))
    yield "large_batch", bytes([0, 0]) + encode_link_header(LinkHeader(1, 0, 1 << 30))
    yield "repaired", bytes([0, 1, 60]) + hello(bytes(16), 7, 1) + whole
    yield "raw", bytes([0, 2]) + hello(bytes(16), 7, 1)
    yield "endless", bytes([5, 2]) + b"TUNL" + bytes(4) + b"\0\0\x20\0" + bytes(500)


HTTP_TARGET = Target("http", _http, _http_seeds)
ADMIN_TARGET = Target("admin", _admin, _admin_seeds, 1024)
RELAY_LINK_TARGET = Target("relay_link", _relay_link, _link_seeds, 1024)
