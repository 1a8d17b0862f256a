"""The fuzz targets `front` and `datagrams`: what programs on this machine send to `tunnel proxy`, and framed datagrams.

A front is what serves one client of `tunnel proxy`. Promises: a request means the same in whatever portions it arrives;
the address that it names is a name and a port; a rewritten HTTP request is one request; a front keeps no more than a
whole head and one read; it never raises and logs at most one line. The stream of datagrams gives back those that were
framed.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from structlog.testing import capture_logs

from tests.fuzz.draw import SIZES, Draw
from tests.fuzz.peer import BLOB
from tests.fuzz.target import Target
from tests.fuzz.wire_end import MemoryTransport, portions, run_in_loop, settle
from tunnel import DeniedError, LostError
from tunnel.streams.datagrams import DATAGRAM_BYTES_MAX, Deframer, frame_datagram
from tunnel.streams.splice import Side, TunnelSide
from tunnel_client.proxy.front import ProxyFront
from tunnel_client.proxy.socks import Socks5Request
from tunnel_client.proxy.socks_udp import Association

__all__ = ["DATAGRAMS_TARGET", "FRONT_TARGET"]

_KEPT_BYTES_MAX = 64 * 1024 + 8192  # a head of 64 KiB, and one read
_HEAD = re.compile(
    rb"[^\x00-\x20\x7f]+ [^\x00-\x20\x7f]+ HTTP/1\.[01]\r\n(?:[^\x00-\x20:\x7f]+: [^\r\n\x00]*\r\n)*\r\n"
)
Ended = Callable[[Side, Exception | None], None]


class _Services:
    """Replaces the command around a front. It connects to nothing: one byte of the input chooses the outcome."""

    request_seconds = 1000.0

    def __init__(self, outcome: int) -> None:
        self.outcome = outcome
        self.targets: list[tuple[str, int]] = []
        self.fronts = 0
        self.far: MemoryTransport | None = None

    async def connect(self, host: str, port: int, ended: Ended, source: str) -> TunnelSide:
        self.targets.append((host, port))
        if self.outcome == 1:
            raise DeniedError(f"no rule allows {host}:{port}")
        if self.outcome == 2:
            raise LostError("the relay is away")
        if self.outcome == 3:
            raise ValueError(f"{host!r} is not a host")
        side = TunnelSide(ended=ended)
        self.far = MemoryTransport(side)
        side.connection_made(self.far)
        return side

    async def associate(self, request: Socks5Request, front: ProxyFront) -> bytes:
        self.targets.append(("udp", 1))
        return request.association_answer("127.0.0.1", 1)

    def register(self, front: ProxyFront) -> bool:
        self.fronts += 1
        return True

    def forget(self, front: ProxyFront) -> None:
        self.fronts -= 1


class _Outcome:
    """The effects of one input on a front."""

    def __init__(self) -> None:
        self.targets: list[tuple[str, int]] = []
        self.sent = b""
        self.passed_on = b""
        self.lines: list[Any] = []


async def _one(data: bytes, choice: int, outcome: int) -> _Outcome:
    services = _Services(outcome)
    front = ProxyFront(services)
    transport = MemoryTransport(front, "127.0.0.1")
    found = _Outcome()
    with capture_logs() as found.lines:
        front.connection_made(transport)
        for portion in portions(data, choice):
            transport.arrive(portion)
            await settle()
            assert len(front._data) <= _KEPT_BYTES_MAX
        transport.end()
        await settle()
        found.sent = bytes(transport.sent)
        found.passed_on = bytes(services.far.sent) if services.far is not None else b""
        transport.lose()
        if services.far is not None:
            services.far.lose()
        await settle()
    found.targets = services.targets
    assert services.fronts <= 0, "the front is still registered"
    return found


def _front(data: bytes) -> None:
    choice, outcome, request = (data[0] if data else 0), (data[1] & 3 if len(data) > 1 else 0), data[2:]

    async def serve() -> None:
        whole = await _one(request, 0, outcome)
        parts = await _one(request, choice, outcome)
        for found in (whole, parts):
            assert len(found.targets) <= 1
            assert len(found.lines) <= 1, found.lines
            for host, port in found.targets:
                assert host
                assert 0 < port < 65536
                assert host.isprintable()
                assert " " not in host
        assert whole.targets == parts.targets, (whole.targets, parts.targets)
        assert whole.sent == parts.sent, (whole.sent, parts.sent)
        assert whole.passed_on == parts.passed_on
        if request[:1].isalpha() and not request.startswith(b"CONNECT ") and whole.passed_on:
            assert _HEAD.match(whole.passed_on), whole.passed_on

    run_in_loop(serve)


def _front_seeds() -> Iterator[tuple[str, bytes]]:
    socks5 = b"\5\1\0" + b"\5\1\0"
    requests = {
        "socks5_name": socks5 + b"\3\x0bdb.internal\x15\x38" + b"hello",
        "socks5_ipv4": socks5 + b"\1\x7f\0\0\1\0\x50",
        "socks5_ipv6": socks5 + b"\4" + bytes(15) + b"\1\0\x50",
        "socks5_udp": b"\5\1\0\5\3\0\1\0\0\0\0\0\0",
        "socks5_password": b"\5\1\2",
        "socks5_bind": b"\5\1\0\5\2\0\1\0\0\0\0\0\0",
        "socks5_no_name": socks5 + b"\3\2\xff\xfe\0\x50",
        "socks4": b"\4\1\0\x50\x7f\0\0\1user\0",
        "socks4a": b"\4\1\0\x50\0\0\0\1user\0db.internal\0hello",
        "connect": b"CONNECT db.internal:5432 HTTP/1.1\r\nHost: x\r\n\r\nhello",
        "connect_ipv6": b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n",
        "get": b"GET http://a.example/b?c HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, x\r\nX: y\r\n\r\n",
        "post": b"POST http://u:p@a.example:81 HTTP/1.0\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n",
        "chunks": b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "options": b"OPTIONS http://a HTTP/1.1\r\n\r\n",
        "plain": b"GET / HTTP/1.1\r\n\r\n",
        "odd_url": b"GET http://[a:::]:99999/ HTTP/1.1\r\n\r\n",
        "odd_host": b"CONNECT \xff\xfe:1 HTTP/1.1\r\n\r\n",
        "two_lengths": b"POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "tls": b"\x16\x03\x01\2\0\1\0\1\xfc",
        "garbage": b"\xff\0\1",
    }
    for number, (name, raw) in enumerate(requests.items()):
        yield name, bytes([1 + number % 7, 0]) + raw
        yield f"{name}_refused", bytes([1 + number % 7, 1 + number % 3]) + raw


# --- datagrams


class _Flows:
    """Takes the datagrams of an association, and keeps the functions that deliver answers to them."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        self.answers: list[Callable[[bytes], None]] = []

    def send(
        self, key: Any, target: Any, datagram: bytes, deliver: Callable[[bytes], None], source: object = ""
    ) -> None:
        str(target)
        self.sent.append((key, datagram))
        self.answers.append(deliver)


def _datagrams(data: bytes) -> None:
    """The first byte chooses: a raw stream, framed datagrams of some sizes, or datagrams of a SOCKS client."""
    draw = Draw(data)
    kind, choice = draw.below(3), draw.byte()
    if kind == 0:
        stream = draw.rest()
        deframers = Deframer(), Deframer()
        whole = list(deframers[0].feed(stream))
        parts = [one for portion in portions(stream, choice) for one in deframers[1].feed(portion)]
        assert whole == parts
        assert sum(len(one) + 2 for one in whole) <= len(stream)
        assert all(len(deframer._data) <= DATAGRAM_BYTES_MAX + 2 for deframer in deframers)
    elif kind == 1:
        sent = [BLOB[: draw.pick(SIZES)] for _ in range(1 + draw.below(8))]
        fitting = [one for one in sent if len(one) <= DATAGRAM_BYTES_MAX]
        for one in sent:
            with contextlib.suppress(ValueError) if one not in fitting else contextlib.nullcontext():
                frame_datagram(one)
        deframer = Deframer()
        stream = b"".join(map(frame_datagram, fitting))
        assert [one for portion in portions(stream, choice | 4) for one in deframer.feed(portion)] == fitting
        assert not deframer._data
    else:
        run_in_loop(lambda: _associate(draw.rest(), choice))


async def _associate(data: bytes, choice: int) -> None:
    """Deliver a SOCKS client's datagrams: each valid one goes to one target, and is answered with its own bytes."""
    association = Association(cast(Any, None), cast(Any, None), "127.0.0.1", 0)
    flows = _Flows()
    association.flows = cast(Any, flows)
    delivered: list[bytes] = []
    cast(Any, association)._deliver = delivered.append
    for number, portion in enumerate(portions(data, choice)[:50]):
        before = len(flows.sent)
        association.datagram_received(portion, ("127.0.0.1" if number % 5 else "192.0.2.1", 4000 + number % 2))
        assert len(flows.sent) <= before + 1
        if len(flows.sent) > before:
            (host, port), datagram = flows.sent[-1]
            assert host
            assert 0 < port < 65536
            assert portion.endswith(datagram)
            flows.answers[-1](datagram)
            assert delivered[-1].endswith(datagram)


def _datagram_seeds() -> Iterator[tuple[str, bytes]]:
    yield "stream", bytes([0, 3]) + frame_datagram(b"hello") + frame_datagram(b"") + b"\xff\xffcut"
    yield "sizes", bytes([1, 5, 7, 0, 1, 5, 11, 12, 13, 3, 2])
    for name, address in (
        ("ipv4", b"\1\x7f\0\0\1"),
        ("name", b"\3\2db"),
        ("ipv6", b"\4" + bytes(15) + b"\1"),
        ("odd", b"\2"),
    ):
        yield f"socks_{name}", bytes([2, 0]) + b"\0\0\0" + address + b"\0\x35" + b"question"
    yield "socks_piece", bytes([2, 0]) + b"\0\0\1\1\x7f\0\0\1\0\x35"
    yield "socks_cut", bytes([2, 6]) + b"\0\0\0\3\xffname" * 30


FRONT_TARGET = Target("front", _front, _front_seeds, 2048)
DATAGRAMS_TARGET = Target("datagrams", _datagrams, _datagram_seeds, 2048)
