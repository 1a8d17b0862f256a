"""A reverse proxy with one scripted behaviour, as a process: `python -m tests.field.scripted --help`.

It collects whole requests and answers, uses a new connection to its upstream for each request, and lets no upgrade
pass, unless it only limits the rate of bytes. `BEHAVIOURS` is the table of what it can do.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from random import Random

import msgspec

from tests.field.alterations import ALTERATIONS
from tests.field.filters import FILTERS
from tests.field.flows import SCANNED
from tests.field.messages import Head, MalformedError, encode, read_body, read_head
from tests.field.shaper import lose, shape
from tunnel.messages.resets import reset_stream
from tunnel.process.event_loops import new_event_loop

__all__ = ["BEHAVIOURS", "Behaviour", "ScriptedProxy", "main"]

_PAGE = b"<html><head><title>Sign in</title></head><body>Sign in to continue.</body></html>"
_BLOCKED = b"<html><head><title>Blocked</title></head><body>This content was blocked.</body></html>"
_EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
_ASKS = {"proxy-authenticate": 'Basic realm="proxy"', "www-authenticate": 'Basic realm="server"'}
_LIMIT_BYTES = 1 << 20  # of a head
_KNOWN = frozenset("host content-type content-length authorization accept user-agent date".split())


class Behaviour(msgspec.Struct, frozen=True):
    """The things a proxy does besides forwarding. A field that has its default changes nothing."""

    login_first: int = 0  # the first requests, up to this number, are redirected to a login page
    outage_status: int = 0  # 302 or 403 for a time, once this proxy has moved some bytes
    outage_after_bytes: int = 8 << 20
    outage_s: float = 2.0
    empty_every: int = 0  # one request in this number gets an empty 200 and is not forwarded
    delay_s: float = 0.0  # before each request is forwarded
    jitter_s: float = 0.0  # each answer is passed on after a random time, up to this long
    connections_max: int = 0  # further connections wait until one of them ends
    closes: str = ""  # ends connections after each answer: "told", with Connection: close, or "silently", without
    strips_headers: bool = False
    http_10: bool = False
    scans: str = ""  # what it refuses, a body with one of the strings SCANNED or what `admits` does not admit, gets:
    # "403", "page" (status 200) or "reset"
    fails_every: int = 0  # one request in this number gets `failure` and is not forwarded: a status, "reset" or "half",
    # which is an answer that is cut in its middle
    failure: str = ""
    early_hints: bool = False  # 103 comes before each answer
    bytes_per_connection: int = 0  # a connection ends after an answer that makes it carry more than this
    bytes_per_s: int = 0  # the rate of each connection, each way; then bytes pass as they come, and upgrades, too
    alters: str = ""  # the name of an alteration of ALTERATIONS, for the bodies of requests and answers
    types: str = ""  # the Content-Type of all requests and answers
    admits: str = ""  # the name of a filter of FILTERS, for requests and answers; then no strings are searched for
    requests_bytes_max: int = 0  # a larger request vanishes, with its head, and all that follows on its connection
    answers_bytes_max: int = 0  # the same for an answer
    segment_bytes_max: int = 0  # what comes at once towards us, and is larger, vanishes, and all that follows it on its
    # connection, as where packets of full size are lost; then bytes pass as they come, and upgrades, too
    quiet_after_bytes: int = 0  # answers vanish on a connection that would then have carried more than this towards us


BEHAVIOURS: dict[str, Behaviour] = {
    "login-first": Behaviour(login_first=10),
    "outage-302": Behaviour(outage_status=302),
    "outage-403": Behaviour(outage_status=403),
    "empty-answers": Behaviour(empty_every=10),
    "two-seconds": Behaviour(delay_s=2.0),
    "answers-0-to-400-ms": Behaviour(jitter_s=0.4),
    "two-connections": Behaviour(connections_max=2),
    "closes": Behaviour(closes="told"),
    "closes-silently": Behaviour(closes="silently"),
    "strips-headers": Behaviour(strips_headers=True),
    "http-1.0": Behaviour(http_10=True),
    "scanner-403": Behaviour(scans="403"),
    "scanner-page": Behaviour(scans="page"),
    "scanner-reset": Behaviour(scans="reset"),
    "json-alone": Behaviour(scans="403", admits="json"),
    "text-alone": Behaviour(scans="403", admits="text"),
    "ascii-alone": Behaviour(scans="403", admits="ascii"),
    "entropy-403": Behaviour(scans="403", admits="entropy"),
    "entropy-reset": Behaviour(scans="reset", admits="entropy"),
    "word-403": Behaviour(scans="403", admits="word"),
    "sometimes-407": Behaviour(fails_every=30, failure="407"),
    "sometimes-401": Behaviour(fails_every=30, failure="401"),
    "sometimes-404": Behaviour(fails_every=30, failure="404"),
    "often-reset": Behaviour(fails_every=10, failure="reset"),
    "often-halved": Behaviour(fails_every=10, failure="half"),
    "early-hints": Behaviour(early_hints=True),
    "quota": Behaviour(bytes_per_connection=1 << 20),
    "line-ends": Behaviour(alters="line-ends"),
    "letters": Behaviour(alters="letters"),
    "types": Behaviour(types="text/plain; charset=utf-8"),
    "shaper": Behaviour(bytes_per_s=64 << 10),
    "answers-1k": Behaviour(answers_bytes_max=1100),
    "answers-20k": Behaviour(answers_bytes_max=20_000),
    "requests-8k": Behaviour(requests_bytes_max=8000),
    "both-6k": Behaviour(requests_bytes_max=6000, answers_bytes_max=6000),
    "segments-1k": Behaviour(segment_bytes_max=1200),
    "quiet-connections": Behaviour(quiet_after_bytes=64 << 10),
}


class _ResetError(Exception):
    """The script resets the client's connection."""


class _VanishedError(Exception):
    """The script drops a message, and whatever follows on the client's connection."""


class _HalvedError(Exception):
    """The script ends the client's connection after these bytes."""


def _drop_above(most: int, size: int) -> None:
    """Drop a message of this size, if it is above a limit. A limit of 0 is none."""
    if 0 < most < size:
        raise _VanishedError


@contextlib.contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close the stream at the end. Take notice of its error whenever it ends, lest the loop report it as unseen."""
    ended = asyncio.ensure_future(writer.wait_closed())
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())
    with contextlib.closing(writer):
        yield


class ScriptedProxy:
    """Serves connections; the counts of its script are shared by all of them."""

    def __init__(self, behaviour: Behaviour, upstream: int) -> None:
        self._behaviour = behaviour
        self._upstream = upstream
        self._requests = 0
        self._moved_bytes = 0
        self._outage_ends_s = 0.0  # monotonic; 0 before the outage
        self._random = Random(1)
        self._slots = asyncio.Semaphore(behaviour.connections_max or 1 << 20)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client until either side ends it."""
        if self._behaviour.bytes_per_s:
            with _closing(writer):
                await shape(reader, writer, self._upstream, self._behaviour.bytes_per_s)
            return
        if self._behaviour.segment_bytes_max:
            with _closing(writer):
                await lose(reader, writer, self._upstream, self._behaviour.segment_bytes_max)
            return
        moved_bytes = answered_bytes = 0
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), _closing(writer):
            async with self._slots:
                try:
                    while (head := await read_head(reader)) is not None:
                        body = await read_body(reader, head, is_answer=False)
                        _drop_above(self._behaviour.requests_bytes_max, len(encode("", head.fields, body, {})))
                        answer = await self._exchange(head, body)
                        answered_bytes += len(answer)
                        _drop_above(self._behaviour.answers_bytes_max, len(answer))
                        _drop_above(self._behaviour.quiet_after_bytes, answered_bytes)
                        writer.write(_EARLY_HINTS + answer if self._behaviour.early_hints else answer)
                        await writer.drain()
                        moved_bytes += len(body) + len(answer)
                        if self._behaviour.closes or self._behaviour.http_10:
                            return
                        if 0 < self._behaviour.bytes_per_connection < moved_bytes:
                            return
                except _HalvedError as half:
                    writer.write(half.args[0])
                    await writer.drain()
                except _VanishedError:
                    while await reader.read(1 << 16):
                        pass
                except (_ResetError, MalformedError):
                    reset_stream(writer)

    async def _exchange(self, head: Head, body: bytes) -> bytes:
        """Return the whole answer to a request."""
        self._requests += 1
        script = self._behaviour
        if self._requests <= script.login_first or (script.outage_status == 302 and self._is_out()):
            return self._answer(302, "Found", _PAGE, {"location": "http://login.invalid/"})
        if script.outage_status and self._is_out():
            return self._answer(script.outage_status, "Forbidden", _BLOCKED)
        if script.empty_every and self._requests % script.empty_every == 0:
            return self._answer(200, "OK", b"")
        if script.scans and self._is_refused(head, body):
            return self._block()
        fails = script.fails_every > 0 and self._requests % script.fails_every == 0
        if fails and script.failure == "reset":
            raise _ResetError
        if fails and script.failure.isdecimal():
            return self._answer(int(script.failure), "No", _BLOCKED, _ASKS)
        await asyncio.sleep(script.delay_s)
        try:
            there, found = self._alter(*await self._forward(*self._alter(head, body)))
        except (ConnectionError, asyncio.IncompleteReadError, MalformedError):
            return self._answer(502, "Bad Gateway", b"")
        await asyncio.sleep(self._random.uniform(0, script.jitter_s))
        self._moved_bytes += len(body) + len(found)
        if script.scans and self._is_refused(there, found):
            return self._block()
        if fails:
            whole = self._render(there, found)
            raise _HalvedError(whole[: len(whole) // 2])
        return self._render(there, found)

    def _alter(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        """Return a request or an answer as this proxy passes it on."""
        if self._behaviour.alters:
            body = ALTERATIONS[self._behaviour.alters](body)
        kind = {"content-type": self._behaviour.types} if self._behaviour.types else {}
        return head._replace(fields={**head.fields, **kind}), body

    def _is_refused(self, head: Head, body: bytes) -> bool:
        """Whether the filter or the scanner refuses this request or answer."""
        if self._behaviour.admits:
            return not FILTERS[self._behaviour.admits](head, body)
        return any(string in body for string in SCANNED)

    def _is_out(self) -> bool:
        """Whether the outage lasts; it begins once enough bytes have moved."""
        if not self._outage_ends_s and self._moved_bytes >= self._behaviour.outage_after_bytes:
            self._outage_ends_s = time.monotonic() + self._behaviour.outage_s
        return time.monotonic() < self._outage_ends_s

    async def _forward(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream, limit=_LIMIT_BYTES)
        with _closing(writer):
            version = "HTTP/1.0" if self._behaviour.http_10 else "HTTP/1.1"
            start = f"{head.words[0]} {head.words[1]} {version}"
            writer.write(encode(start, self._passed(head.fields), body, {"connection": "close"}))
            answer = await read_head(reader)
            if answer is None:
                raise MalformedError("no answer")
            return answer, await read_body(reader, answer, is_answer=True)

    def _passed(self, fields: dict[str, str]) -> dict[str, str]:
        if not self._behaviour.strips_headers:
            return fields
        return {name: value for name, value in fields.items() if name in _KNOWN}

    def _block(self) -> bytes:
        if self._behaviour.scans == "reset":
            raise _ResetError
        if self._behaviour.scans == "page":
            return self._answer(200, "OK", _BLOCKED)
        return self._answer(403, "Forbidden", _BLOCKED)

    def _answer(self, status: int, reason: str, body: bytes, fields: dict[str, str] | None = None) -> bytes:
        return self._render(
            Head(("HTTP/1.1", str(status), reason), {"content-type": "text/html", **(fields or {})}), body
        )

    def _render(self, head: Head, body: bytes) -> bytes:
        version = "HTTP/1.0" if self._behaviour.http_10 else "HTTP/1.1"
        closing = {"connection": "close"} if self._behaviour.closes == "told" else {}
        return encode(" ".join((version, *head.words[1:])), self._passed(head.fields), body, closing)


async def serve(behaviour: Behaviour, port: int, upstream: int) -> None:
    """Serve at this port of 127.0.0.1 until the process is killed."""
    proxy = ScriptedProxy(behaviour, upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=_LIMIT_BYTES)
    async with server:
        await server.serve_forever()


def main(arguments: list[str] | None = None) -> int:
    """Run the proxy; it ends only when the process is killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.scripted", description="A proxy with one behaviour.")
    parser.add_argument("name", choices=sorted(BEHAVIOURS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True, help="port of the relay on 127.0.0.1")
    options = parser.parse_args(arguments)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(BEHAVIOURS[options.name], options.port, options.upstream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
