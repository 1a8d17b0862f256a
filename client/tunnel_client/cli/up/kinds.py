"""The kinds of entries in the file of `tunnel up`: what each claims for itself, and how it is served.

What the command line accepts, an entry accepts: both use the same parsers and the same classes. A new form of a
specification therefore needs a change here only if it claims something of a new kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from tunnel import Attachment, DeniedError
from tunnel_client.cli.commands.expose import Exposing
from tunnel_client.cli.commands.forward import bind_forward, forwarding
from tunnel_client.cli.commands.proxy import Proxying
from tunnel_client.cli.serving import Listening
from tunnel_client.cli.up.declaration import ExposePart, ForwardPart, ProxyPart
from tunnel_client.forward.listening import address_of, bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import EVERYWHERE, parse_address, parse_bind, parse_forward, parse_service

__all__ = ["KINDS", "Claim", "Kind", "Opened"]


@dataclass(frozen=True)
class Claim:
    """Something of which only one entry can have the same: a local port, or a name at the relay."""

    what: str  # tcp, udp, name
    place: str  # the host of a port; a name
    port: int = 0

    @property
    def key(self) -> tuple[str, object]:
        """Only claims with the same key can exclude each other."""
        return self.what, self.place if self.what == "name" else self.port

    def excludes(self, other: Claim) -> bool:
        """Whether another entry cannot have this beside us. Port 0 is any free port."""
        places = {self.place, other.place}
        is_shared = len(places) == 1 or (self.what != "name" and not places.isdisjoint(EVERYWHERE))
        return is_shared and self.key == other.key and self.key[1] != 0

    def __str__(self) -> str:
        return f"the name {self.place}" if self.what == "name" else f"the local {self.what} port {self.port}"


class Opened:
    """An entry that is served: from where to where it leads, and what stops listening at the end."""

    def __init__(self, leads: str, listening: Listening) -> None:
        self.leads = leads
        self.listening = listening
        self._ended: asyncio.Future[DeniedError] = asyncio.get_running_loop().create_future()

    def refuse(self, error: DeniedError) -> None:
        """End it, because the relay's rules do not allow it any more."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def ended(self) -> DeniedError:
        """Return the error when the relay ends it; wait for ever if it does not."""
        return await self._ended


@dataclass(frozen=True)
class Kind:
    """A kind of entry. Both functions raise UsageError for a specification that is wrong."""

    claims: Callable[[Any], list[Claim]]
    leads: Callable[[Any], str]  # from where to where, before it is served
    open: Callable[[Any, Attachment, Traffic], AbstractAsyncContextManager[Opened]]


def _forward_claims(part: ForwardPart) -> list[Claim]:
    spec = parse_forward(part.spec)
    return [Claim(spec.protocol, spec.bind.host, spec.bind.tcp_port)]


@asynccontextmanager
async def _forward(part: ForwardPart, attachment: Attachment, traffic: Traffic) -> AsyncIterator[Opened]:
    spec = parse_forward(part.spec)
    with closing(bind_forward(spec)) as sock:
        where = f"{'udp/' if spec.protocol == 'udp' else ''}{address_of(sock)}"
        async with forwarding(attachment, spec, sock, traffic) as listening:
            yield Opened(f"{where} -> {spec.target}", listening)


def _expose_claims(part: ExposePart) -> list[Claim]:
    parse_address(part.address)
    return [Claim("name", parse_service(part.service))]


@asynccontextmanager
async def _expose(part: ExposePart, attachment: Attachment, traffic: Traffic) -> AsyncIterator[Opened]:
    exposing = Exposing(attachment, part.service, parse_address(part.address), traffic, part.backlog)
    async with exposing:
        opened = Opened(f"{part.service} -> {part.address}", exposing)
        exposing.when_refused(opened.refuse)
        yield opened


def _proxy_claims(part: ProxyPart) -> list[Claim]:
    address = parse_bind(part.listen)
    return [Claim("tcp", address.host, address.tcp_port)]


@asynccontextmanager
async def _proxy(part: ProxyPart, attachment: Attachment, traffic: Traffic) -> AsyncIterator[Opened]:
    with closing(bind(parse_bind(part.listen))) as sock:
        where = str(address_of(sock))
        proxying = Proxying(attachment, sock, traffic, dial_seconds=part.timeout, connections_max=part.connections)
        async with proxying:
            yield Opened(f"socks5h://{where} and http://{where}", proxying)


KINDS: dict[str, Kind] = {
    "forward": Kind(_forward_claims, lambda part: str(parse_forward(part.spec)), _forward),
    "expose": Kind(_expose_claims, lambda part: f"{part.service} -> {part.address}", _expose),
    "proxy": Kind(_proxy_claims, lambda part: f"proxy on {parse_bind(part.listen)}", _proxy),
}
