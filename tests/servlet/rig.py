"""A real relay on loopback for tests, a client that speaks plain HTTP to it, and bodies to send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.support.loops import until
from tunnel.wire import (
    Attach,
    Exchange,
    Message,
    Packet,
    attachment_id,
    decode_envelope,
    encode_envelope,
    encode_packets,
)
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import Key, TokenTable, make_token
from tunnel_servlet.config import ListenAddress, RelayConfig, ServiceLimits
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.running import RunningRelay

__all__ = [
    "ANYWHERE",
    "KEYS",
    "LOOPBACK",
    "TOKENS",
    "Client",
    "Reply",
    "attach_body",
    "envelope",
    "exchange_body",
    "relay",
    "settings",
    "until",
]

LOOPBACK = ListenAddress("127.0.0.1", 0)
_MADE = {user: make_token(Random(number)) for number, user in enumerate(("ann", "bob", "exits"))}
TOKENS = {user: token for user, (token, _) in _MADE.items()}
KEYS: dict[str, list[Key]] = {user: [key] for user, (_, key) in _MADE.items()}
ANYWHERE = Grant(connect=(parse_rule("127.0.0.0/8:*"), parse_rule("*:*")), services=("*",), listen=("reports",))


def settings(
    *, limits: dict[str, Any] | None = None, switch: dict[str, Any] | None = None, **changes: Any
) -> RelayConfig:
    """Return a configuration in which ann and bob may connect to any public or loopback target, and the endpoints of
    the user `exits` may be exits."""
    config = RelayConfig(
        listen=(LOOPBACK,),
        exit="none",
        tokens=TokenTable(KEYS),
        grants=GrantTable({"ann": ANYWHERE, "bob": ANYWHERE, "exits": Grant(exit=True)}),
        switch=SwitchConfig(**(switch or {})),
        limits=ServiceLimits(**(limits or {})),
    )
    return replace(config, **changes)


def relay(config: RelayConfig | None = None, **options: Any) -> RunningRelay:
    """Return a relay, which starts when it is entered."""
    return RunningRelay(config or settings(), **options)


class Reply:
    """A whole HTTP response."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def message(self) -> Any:
        """The message in the envelope, or the error of decoding it."""
        return decode_envelope(self.body)


class Client:
    """An HTTP client that sends requests as a carrier does, and invalid ones."""

    def __init__(self, running: RunningRelay, user: str = "ann", base: str = "") -> None:
        self.url = f"http://{running.addresses[0]}{base}"
        self.token = TOKENS.get(user, user)
        self.role = "exit" if user == "exits" else "endpoint"  # empty: the request names no role
        self.epoch = running.relay.host.switch.epoch
        self.switch = running.relay.host.switch
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.session.close()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send any request."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, data=body, headers=names) as response:
            return Reply(response.status, response.headers, await response.read())

    async def post(self, body: Any, **headers: str) -> Reply:
        """Send an exchange."""
        usual = {"Authorization": f"Bearer {self.token}", "Content_Type": "application/octet-stream"}
        if self.role:
            usual["X_Endpoint_Role"] = self.role
        return await self.ask("POST", "/exchange", body, **{**usual, **headers})

    def post_soon(self, body: bytes) -> asyncio.Task[Reply]:
        """Send an exchange whose answer takes time."""
        return asyncio.get_running_loop().create_task(self.post(body))

    async def parked(self, body: bytes) -> asyncio.Task[Reply]:
        """Send a pull; return when the relay holds it."""
        before = self.switch.stats().parked_pulls
        pull = self.post_soon(body)
        await until(lambda: self.switch.stats().parked_pulls > before)
        return pull

    async def attach(self, seed: int = 1, **changes: Any) -> Any:
        return (await self.post(attach_body(seed, **changes))).message


def envelope(message: Message) -> bytes:
    return b"".join(encode_envelope(message))


def attach_body(seed: int = 1, **changes: Any) -> bytes:
    fields: dict[str, Any] = {"generation": 1, "pull_interval_ms": 0, "body_bytes_max": 1 << 20}
    return envelope(Attach(secret=seed.to_bytes(32, "big"), **{**fields, **changes}))


def exchange_body(epoch: int, number: int = 0, *packets: Packet, seed: int = 1, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "attachment_id": attachment_id(seed.to_bytes(32, "big")),
        "epoch": epoch,
        "generation": 1,
        "lane": 0,
        "number": number,
        "serial_received": 0,
        "hold_ms": 10_000,
        "answer_bytes_max": 1 << 20,
        "payload": list(encode_packets(packets)),
    }
    return envelope(Exchange(**{**fields, **changes}))
