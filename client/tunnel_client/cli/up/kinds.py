"""The kinds of entries in the file of `tunnel up`: what each claims for itself, and how it is served.

An entry accepts everything that the command line accepts, because both use the same parsers and the same classes. A new
form of a specification therefore needs a change here only if entries of that form occupy a resource that two entries
cannot share, and that `Claim` does not know yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from tunnel import Attachment, DeniedError, PublicPlace
from tunnel_client.cli.commands.expose import Exposing, public_place, require_fitting
from tunnel_client.cli.commands.forward import bind_forward, forwarding
from tunnel_client.cli.commands.proxy import Proxying
from tunnel_client.cli.serving import Listening
from tunnel_client.cli.up.declaration import ExposePart, ForwardPart, ProxyPart
from tunnel_client.forward.listening import address_of, bind
from tunnel_client.forward.permission import require_allowed
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import EVERYWHERE, PROTOCOLS, parse_address, parse_bind, parse_forwards, parse_service

__all__ = ["KINDS", "Claim", "Kind", "Opened"]


@dataclass(frozen=True)
class Claim:
    """Something that only one entry can have: a local port or Unix socket, a name or a public place at the relay."""

    what: str  # tcp or udp: a local port; socket: a local Unix socket; name: a service; place: a public place
    place: str  # of a port, the host to which it is bound; otherwise the path, the name or the public place
    port: int = 0

    @property
    def key(self) -> tuple[str, object]:
        """Two entries whose claims have different keys can always be served together."""
        return self.what, self.port if self.what in PROTOCOLS else self.place

    def excludes(self, other: Claim) -> bool:
        """Return whether an entry with this claim and another entry with `other` cannot both be served.

        Port 0 is any free port, and excludes nothing.
        """
        places = {self.place, other.place}
        is_shared = len(places) == 1 or (self.what in PROTOCOLS and not places.isdisjoint(EVERYWHERE))
        return is_shared and self.key == other.key and self.key[1] != 0

    def __str__(self) -> str:
        return f"the local {self.what} port {self.port}" if self.what in PROTOCOLS else f"the {self.what} {self.place}"


class Opened:
    """An entry that is served.

    `leads` says from where to where it leads, for people. `listening` is the object that stops listening at the end.
    """

    def __init__(self, leads: str, listening: Listening) -> None:
        self.leads = leads
        self.listening = listening
        self._ended: asyncio.Future[DeniedError] = asyncio.get_running_loop().create_future()

    def refuse(self, error: DeniedError) -> None:
        """End the entry, because the relay refuses it now."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def wait_for_end(self) -> DeniedError:
        """Wait until the relay ends the entry, and return the error. If the relay never does, this never returns."""
        return await self._ended


@dataclass(frozen=True)
class Kind:
    """A kind of entry.

    `claims` raises UsageError for a wrong specification, and `open` for a local port that cannot be bound.
    """

    claims: Callable[[Any], list[Claim]]
    leads: Callable[[Any], str]  # says from where to where an entry leads, before it is served
    open: Callable[[Any, Attachment, Traffic], AbstractAsyncContextManager[Opened]]


class _Together:
    """The ports of a range, which stop listening together."""

    def __init__(self) -> None:
        self.members: list[Listening] = []

    async def stop_listening(self) -> None:
        for member in self.members:
            await member.stop_listening()


def _forward_claims(part: ForwardPart) -> list[Claim]:
    return [
        Claim("socket", spec.bind.path) if spec.bind.path else Claim(spec.protocol, spec.bind.host, spec.bind.tcp_port)
        for spec in parse_forwards(part.spec)
    ]


def _forward_leads(part: ForwardPart) -> str:
    first, *others = map(str, parse_forwards(part.spec))
    return _with_more(first, len(others))


def _with_more(text: str, others: int) -> str:
    return f"{text}, and {others} more" if others else text


@asynccontextmanager
async def _forward(part: ForwardPart, attachment: Attachment, traffic: Traffic) -> AsyncIterator[Opened]:
    together, leads = _Together(), []
    async with AsyncExitStack() as stack:
        bound = [(spec, stack.enter_context(closing(bind_forward(spec)))) for spec in parse_forwards(part.spec)]
        await require_allowed(attachment, [spec for spec, _ in bound])
        for spec, sock in bound:
            leads.append(f"{'udp/' if spec.protocol == 'udp' else ''}{address_of(sock)} -> {spec.target}")
            together.members.append(await stack.enter_async_context(forwarding(attachment, spec, sock, traffic)))
        yield Opened(_with_more(leads[0], len(leads) - 1), together)


def _expose_claims(part: ExposePart) -> list[Claim]:
    require_fitting(parse_service(part.service), parse_address(part.address))
    place = _public(part)
    return [Claim("name", part.service), *([Claim("place", str(place))] if place is not None else [])]


def _public(part: ExposePart) -> PublicPlace | None:
    return public_place(part.public, part.public_host, part.client_address, [part.service])


def _expose_leads(part: ExposePart) -> str:
    place = _public(part)
    return f"{part.service} -> {part.address}" + ("" if place is None else f" (people without the tunnel: {place})")


@asynccontextmanager
async def _expose(part: ExposePart, attachment: Attachment, traffic: Traffic) -> AsyncIterator[Opened]:
    address = parse_address(part.address)
    async with Exposing(attachment, part.service, address, traffic, part.backlog, _public(part)) as exposing:
        opened = Opened(_expose_leads(part), exposing)
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
    "forward": Kind(_forward_claims, _forward_leads, _forward),
    "expose": Kind(_expose_claims, _expose_leads, _expose),
    "proxy": Kind(_proxy_claims, lambda part: f"proxy on {parse_bind(part.listen)}", _proxy),
}
