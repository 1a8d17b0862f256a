"""Fuzz targets for what a client reads from other parties: `client_link`, `challenges` and `proxy_answer`.

Promises: the client's half of a link opens at most once, ends once and keeps a bounded first message; any text is read
as a list of challenges, and the credentials for any of them are one header field; any answer of a proxy is read as a
status or raises ConnectionError.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeAlias

from tests.fuzz.checksums import repair_envelope
from tests.fuzz.draw import Draw
from tests.fuzz.target import Target
from tests.fuzz.wire_end import MemoryTransport, portions, run_in_loop, settle
from tunnel.carriers.dialing.challenges import Challenge, Introduction, parse_challenges
from tunnel.carriers.dialing.proxy_connect import ProxyConnection
from tunnel.carriers.halves.link_protocol import LINK_LANE
from tunnel.carriers.links.dialed_link import DialedLink, hello
from tunnel.exchange import LinkInput
from tunnel.wire import ENVELOPE_BYTES, Answer, LinkHeader, Status, StatusCode, encode_envelope, encode_link_header

__all__ = ["CHALLENGES_TARGET", "CLIENT_LINK_TARGET", "PROXY_ANSWER_TARGET", "Owner"]

_FIRST_BYTES_MAX = 64 * 1024 + 1024  # the most that is kept of an incomplete first message: the limit, and one read
_Answer: TypeAlias = tuple[int, str, list[Challenge]]
_RIGHT = b"".join(encode_envelope(Answer(LINK_LANE, 0, 0)))


class Owner:
    """Uses a link, and checks the order of its events."""

    def __init__(self) -> None:
        self.opened = 0
        self.lost: list[str] = []
        self.batches = 0

    def link_open(self, link: DialedLink) -> None:
        assert not self.lost
        self.opened += 1

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        assert self.opened == 1
        assert not self.lost, "input after the end"
        self.batches += len(found.batches)

    def link_writable(self, link: DialedLink) -> None:
        assert not self.lost

    def link_lost(self, link: DialedLink, reason: str) -> None:
        assert reason
        self.lost.append(reason)


def _client_link(data: bytes) -> None:
    draw = Draw(data)
    choice, kind, early = draw.byte(), draw.below(3), draw.byte()
    first = _RIGHT if kind == 0 else repair_envelope(draw.raw(draw.byte())) if kind == 1 else b""
    coming = first + draw.rest()

    async def serve() -> None:
        owner = Owner()
        ends: list[Exception | None] = []
        link = DialedLink(owner, lambda: 0, ends.append)
        transport = MemoryTransport(link)
        link.begin(transport, hello(bytes(16), 1, 1), coming[:early])
        for portion in portions(coming[early:], choice):
            transport.arrive(portion)
            assert len(link._first) <= _FIRST_BYTES_MAX
        await settle()
        assert owner.opened <= 1
        assert kind or owner.opened
        assert not kind or not owner.opened or coming[:4] == b"TUNL"
        if not owner.opened and len(coming) >= ENVELOPE_BYTES + 64 * 1024:
            assert owner.lost, "an endless first message"
        transport.lose()
        await settle()
        assert (len(owner.lost), len(ends)) == (1, 1)

    run_in_loop(serve)


# --- credentials for a proxy


def _is_field(value: str) -> bool:
    """Return whether the text can be the value of a header field: one line that can be encoded."""
    value.encode()  # raises for a surrogate
    return not any(character in value for character in "\r\n\0")


def _challenges(data: bytes) -> None:
    """The first byte chooses the user, whether one connection can carry several messages, and how headers are decoded.
    Each line of the rest is a header."""
    choice = data[0] if data else 0
    lines = data[1:].split(b"\n")
    # aiohttp decodes headers as UTF-8 with surrogates, our own CONNECT as Latin-1.
    values = [line.decode("latin-1") if choice & 1 else line.decode("utf-8", "surrogateescape") for line in lines]
    challenges = parse_challenges(values)
    assert len(challenges) <= len(data)
    for value in values:
        if '"' not in value:
            assert parse_challenges([f"{value}, Basic realm=x"])[-1] == Challenge("basic", {"realm": "x"})
    for challenge in challenges:
        assert challenge.scheme == challenge.scheme.lower()
        assert all(name == name.lower() for name in challenge.parameters)
    user, password = ("", "") if choice & 2 else ("ann€ü", 'pa"ss\\:ü')
    introduction = Introduction("proxy:3128", "relay.example", user, password, can_talk=bool(choice & 4))
    assert _is_field(introduction.advice(challenges))
    sent: str | None = None
    for _ in range(4):
        if not introduction.on_challenged(challenges, sent):
            break
        sent = introduction.header("CONNECT", "relay.example:443")
        assert sent is None or _is_field(sent), sent


def _challenge_seeds() -> Iterator[tuple[str, bytes]]:
    fields: dict[str, Iterable[str]] = {
        "basic": ['Basic realm="Proxy of the office"'],
        "digest": ['Digest realm="a", nonce="b", qop="auth,auth-int", algorithm=SHA-256, opaque="c", stale=true'],
        "session": ['Digest realm="a\\"b", nonce="b\\\\", algorithm=MD5-sess'],
        "ntlm": ["NTLM TlRMTVNTUAACAAAA", "Negotiate"],
        "several": ['Negotiate, NTLM, Basic realm="x", Digest nonce=1'],
        "empty": ["", ",", "=", '"', 'Digest nonce="', "Digest nonce=\xff, realm=\xfe\xff"],
        "unknown": ["Bearer abc==", "a b c d e f", "Basic , , realm=x ,"],
        "invalid": ["Weird {, Basic realm=x", 'Digest nonce="n", opaque=, qop=auth', '@ "a, b", NTLM', 'X a="b, Basic'],
    }
    for number, (name, values) in enumerate(fields.items()):
        for choice in (0, 1):
            yield f"{name}_{choice}", bytes([choice | number << 2 & 4]) + "\n".join(values).encode("latin-1")


# --- the answer to CONNECT


def _proxy_answer(data: bytes) -> None:
    choice, coming = data[0] if data else 0, data[1:]

    async def serve() -> None:
        dialogue = ProxyConnection()
        transport = MemoryTransport(dialogue)
        dialogue.connection_made(transport)

        async def arrive() -> None:
            for portion in portions(coming, choice):
                transport.arrive(portion)
                await settle()
            transport.lose()
            await settle()

        sending = arrive()
        with contextlib.suppress(ConnectionError):
            dialogue_sent = 'Digest username="ann€"' if choice & 8 else None
            status, reason, challenges = await _both(dialogue.ask("relay.example:443", dialogue_sent), sending)
            assert 100 <= status <= 999
            assert "\n" not in reason
            assert all(isinstance(challenge, Challenge) for challenge in challenges)

    run_in_loop(serve)


async def _both(asking: Coroutine[Any, Any, _Answer], sending: Coroutine[Any, Any, None]) -> _Answer:
    task = asyncio.ensure_future(sending)
    try:
        return await asking
    finally:
        await task


def _answer_seeds() -> Iterator[tuple[str, bytes]]:
    long_number = b"9" * 4400
    heads = {
        "established": b"HTTP/1.1 200 Connection established\r\n\r\n",
        "asked": b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\xff\r\n"
        b"Content-Length: 3\r\n\r\nabc",
        "closed": b"HTTP/1.0 403 Forbidden\r\nConnection: close\r\n\r\n<html>",
        "no_http": b"SSH-2.0-OpenSSH\r\n\r\n",
        "long_status": b"HTTP/1.1 " + long_number + b" x\r\n\r\n",
        "long_length": b"HTTP/1.1 407 x\r\nContent-Length: " + long_number + b"\r\n\r\n",
        "cut": b"HTTP/1.1 200 O",
        "no_status": b"HTTP/1.1 \r\n\r\n",
    }
    for number, (name, head) in enumerate(heads.items()):
        yield name, bytes([number]) + head
        yield f"{name}_digest", bytes([number | 8]) + head


def _link_seeds() -> Iterator[tuple[str, bytes]]:
    batch = encode_link_header(LinkHeader(1, 0, 24)) + bytes(24)
    refusal = b"".join(encode_envelope(Status(StatusCode.UNKNOWN, 0, "gone")))
    yield "right", bytes([0, 0, 0]) + batch
    yield "right_early", bytes([1, 0, 40]) + batch
    yield "refused", bytes([2, 2, 0]) + refusal
    yield "repaired", bytes([0, 1, 0, 30]) + _RIGHT
    yield "page", bytes([0, 2, 10]) + b"<html>" * 20
    yield "endless", bytes([3, 2, 0]) + b"TUNL" + bytes(4) + b"\0\1\0\0" + bytes(300)


CLIENT_LINK_TARGET = Target("client_link", _client_link, _link_seeds, 1024)
CHALLENGES_TARGET = Target("challenges", _challenges, _challenge_seeds, 2048)
PROXY_ANSWER_TARGET = Target("proxy_answer", _proxy_answer, _answer_seeds, 4500)
