"""The relay's listeners without a network: bytes go into the real HTTP connections, and all answers are read."""

import re
from random import Random
from typing import Any

from structlog.testing import capture_logs

from tests.fuzz.wire_end import MemoryTransport, portions, settle
from tests.turns.fake_meter import FakeMeter
from tunnel.wire import Attach, Attached, Status, StatusCode, decode_envelope, encode_envelope
from tunnel_servlet.access.connections import Connections
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import TokenTable, make_admin_secret, make_token
from tunnel_servlet.config import RelayConfig, ServiceLimits
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.admin import create_admin
from tunnel_servlet.web.application import RELAY, create_app
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.http.server import RelayRunner, admin_connections
from tunnel_servlet.web.relay import Relay

__all__ = ["ADMIN_SECRET", "ATTACH", "HELD_BYTES_MAX", "TOKEN", "HttpWorld", "answers_in"]

TOKEN, _KEY = make_token(Random(1))
ADMIN_SECRET = make_admin_secret(Random(2))
ATTACH = b"".join(encode_envelope(Attach(bytes(range(32)), 1, 0, 8192)))  # the body of a request that attaches
BODY_BYTES_MAX = 8192
HELD_BYTES_MAX = 1 << 20  # of all connections
_HEAD = re.compile(rb"HTTP/\d\.\d (\d{3}) ([^\r\n]*)\r\n((?:[^\r\n:]+: ?[^\r\n]*\r\n)*)\r\n")


def _config(*, is_open: bool) -> RelayConfig:
    grant = Grant(connect=(parse_rule("*:*"),), services=("*",), listen=("*",))
    return RelayConfig(
        exit="none",
        tokens=TokenTable({"ann": [_KEY]}),
        grants=GrantTable({"ann": grant}),
        is_open=is_open,
        admin_secret=ADMIN_SECRET,
        switch=SwitchConfig(body_bytes_max=BODY_BYTES_MAX),
        limits=ServiceLimits(auth_failures_per_minute=3, link_batch_bytes_max=1 << 17),
    )


def answers_in(data: bytes, *, has_head: bool = False) -> tuple[list[tuple[int, bytes, bytes]], bytes]:
    """Return status, header fields and body of each answer, and the bytes after an answer 101.

    `has_head`: there may be answers to HEAD, which have no body.
    """
    found: list[tuple[int, bytes, bytes]] = []
    while data:
        match = _HEAD.match(data)
        assert match is not None, f"this is not an answer: {data[:200]!r}"
        status, fields = int(match[1]), match[3]
        data = data[match.end() :]
        length = re.search(rb"(?i)content-length: (\d+)\r", fields)
        size = 0 if length is None or (has_head and data[:5] in (b"", b"HTTP/")) else int(length[1])
        if status == 101:
            return [*found, (status, fields, b"")], data
        assert status != 100 or length is None
        assert len(data) >= size, "a body is not whole"
        found.append((status, fields, data[:size]))
        data = data[size:]
    return found, b""


class HttpWorld:
    """One relay, or its admin listener, and one connection to it. Use it with `async with`."""

    def __init__(self, *, is_open: bool = False, is_admin: bool = False, peer: str = "192.0.2.1") -> None:
        self.is_open = is_open
        self.is_admin = is_admin
        self.drained: list[float | None] = []
        self._peer = peer
        self._connections = admin_connections() if is_admin else Connections(64, 16, 16, HELD_BYTES_MAX)
        self._capture = capture_logs()

    async def __aenter__(self) -> "HttpWorld":
        self.logs: list[Any] = self._capture.__enter__()
        config = _config(is_open=self.is_open)
        self._app = create_app(config)
        self.relay: Relay = self._app[RELAY]
        self.relay.host.turns.meter = FakeMeter()  # processor time would make runs differ
        self._relay_runner = RelayRunner(self._app, config.limits, self._connections)
        await self._relay_runner.setup()
        runner = self._relay_runner
        if self.is_admin:
            runner = RelayRunner(
                create_admin(self.relay, self.drained.append), config.limits, self._connections, is_admin=True
            )
            await runner.setup()
        self._runner = runner
        server: Any = runner.server
        counted = self._connections.admit(self._peer)
        assert counted is not None
        self.handler: RelayHandler = server.handler(counted)
        self.transport = MemoryTransport(self.handler, self._peer)
        self.handler.connection_made(self.transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.transport.lose()
        await settle()
        for runner in {id(one): one for one in (self._runner, self._relay_runner)}.values():
            await runner.cleanup()
        await settle()
        self._capture.__exit__(None, None, None)

    async def attach(self) -> Attached:
        """Attach as the user with the token; return the relay's answer."""
        head = f"POST /exchange HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        length = f"Content-Type: application/octet-stream\r\nContent-Length: {len(ATTACH)}\r\n\r\n"
        await self.send(f"{head}{length}".encode() + ATTACH, 0)
        ((_, _, body),), _ = self.check()
        attached = decode_envelope(body)
        assert isinstance(attached, Attached)
        return attached

    async def send(self, data: bytes, choice: int) -> None:
        """Let the data arrive in portions; the connection stays open."""
        for number, portion in enumerate(portions(data, choice)):
            self.transport.arrive(portion)
            if number % 8 == 0:
                await settle()
        await settle()

    def check(self, *, has_head: bool = False) -> tuple[list[tuple[int, bytes, bytes]], bytes]:
        """Check what holds whatever was sent; return the answers, and the bytes after an upgrade."""
        answers, rest = answers_in(bytes(self.transport.sent), has_head=has_head)
        for status, fields, body in answers:
            assert status < 500 or self._is_deliberate(status, fields, body), f"{status} {body[:200]!r}"
            assert b"<html" not in body.lower()
        final = [status for status, _, _ in answers if status != 100]
        if not self.handler.counted.user and not self.is_admin:
            assert len(final) <= 1, "a connection without a valid token serves one request"
        about = [line for line in self.logs if "address" in line]
        assert len(about) <= len(final) + 1, about  # one more for a request that got no answer
        for line in self.logs:
            assert line["event"] != "failed", line
            assert not line.keys() & {"exc_info", "exception"}, line
            assert TOKEN not in str(line)
            assert len(str(line)) < 1000, line
        return answers, rest

    def check_end(self) -> None:
        """Check that the connection, which has ended, left nothing behind."""
        assert self.transport.is_lost
        assert (self._connections.total, self._connections.held_bytes) == (0, 0)
        assert not self.relay.host.links

    def _is_deliberate(self, status: int, fields: bytes, body: bytes) -> bool:
        """Return whether an answer 5xx is on purpose: BUSY to a user, or readiness on the admin listener."""
        if status != 503:
            return False
        if self.is_admin:
            return body in (b"draining\n", b"not ready\n")
        found = decode_envelope(body)
        return bool(self.handler.counted.user) and isinstance(found, Status) and found.code == StatusCode.BUSY
