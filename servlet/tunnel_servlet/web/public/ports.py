"""Services for people without the tunnel: the ports and host names at which the relay accepts their connections.

Each connection becomes a stream to the service. All streams to the services of one user begin at one endpoint in this
process, whose user is the service's owner: connections and memory count for the owner, and the owner's rate limits
these streams, as it limits every stream to a service.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from tunnel import Attachment, TunnelError, memory_attach
from tunnel.streams.splice import TunnelSide, splice
from tunnel.system.tasks import KeptTasks
from tunnel.wire import PublicPlace
from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.access.grants import GrantTable, PublicAddress
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.config import ListenAddress, ServiceLimits
from tunnel_servlet.switch.decisions import Publisher
from tunnel_servlet.switch.inline_id import public_endpoint_id
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.http.acceptor import Acceptor, bind, listen
from tunnel_servlet.web.http.payers import REQUEST_US
from tunnel_servlet.web.public.proxy_header import proxy_header
from tunnel_servlet.web.public.sides import STRANGERS, HttpSide, PublicSide

__all__ = ["PublicPorts", "Published"]

_log = structlog.get_logger("public")
_TLS_S = 10.0  # for the handshake of a connection
_OPEN_S = 30.0  # for a service to accept
_LINGER_S = 2.0
_KEEP_S = 10.0  # an endpoint is kept for this time after its last use: it costs more to create than a port to open
_OPENINGS_MAX = 100  # places that one owner may open within `_KEEP_S`; more would cost the other users time


class Published(msgspec.Struct, frozen=True):
    """A service that people without the tunnel reach, and where."""

    user: str
    name: str
    place: PublicPlace
    address: PublicAddress | None = None  # if the place is a port


class _Owner:
    """One user whose services are public: the endpoint where the streams begin, and the connections."""

    def __init__(self, user: str, attachment: Attachment) -> None:
        self.user = user
        self.attachment = attachment
        self.names: set[str] = set()
        self.connections = 0
        self.timer: asyncio.TimerHandle | None = None
        self.openings = 0  # calls of `may_open` since `forgotten_s`, when the earlier ones were forgotten
        self.forgotten_s = 0.0
        self.started = asyncio.get_running_loop().create_task(attachment.start())
        self.started.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    def may_open(self) -> bool:
        """Count a place that is to be opened. Return False if there were too many in a short time."""
        now = asyncio.get_running_loop().time()
        if now - self.forgotten_s > _KEEP_S:
            self.openings, self.forgotten_s = 0, now
        self.openings += 1
        return self.openings <= _OPENINGS_MAX

    async def close(self) -> None:
        self.started.cancel()
        if self.timer is not None:
            self.timer.cancel()
        await asyncio.gather(self.started, return_exceptions=True)
        await self.attachment.close()


class PublicPorts(Publisher):
    """All public places of a relay. `grants` returns the present rules, `host` the host of the switch.

    `joined(source, owner, service, connection_id)` is called when a person's connection is joined to a stream.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        grants: Callable[[], GrantTable],
        host: Callable[[], SwitchHost],
        joined: Callable[[str, str, str, int], None] = lambda source, owner, service, connection_id: None,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self._joined = joined
        self._proxies = proxies
        self._limits = limits
        self._grants = grants
        self._host = host
        self._published: dict[str, Published] = {}  # by name of the service
        self._hosts: dict[str, Published] = {}
        self._ports: dict[int, tuple[Published, Acceptor]] = {}
        self._http: list[Acceptor] = []
        self._owners: dict[str, _Owner] = {}
        self._sides: dict[PublicSide, None] = {}
        self._tasks = KeptTasks()
        self._attached = 0  # number of endpoints attached so far
        # No stranger ever shows a token. `Connections` admits half of its limit without a token, so it gets twice the
        # number that the configuration allows.
        self._connections = Connections(
            2 * limits.public_connections_max, limits.public_connections_per_address_max, 1, limits.waiting_bytes_max
        )

    # --- for the switch

    def publish(self, user: str, name: str, place: PublicPlace) -> str:
        why = self._grants().why_not_public(user, place)
        if why:
            _log.info("public", user=user, service=name, place=str(place), open=False, text=why)
            return why
        wanted = Published(user, name, place, None if place.host else self._grants().public_address(user, place))
        if self._published.get(name) == wanted:
            return ""
        taken = self._hosts.get(place.host) if place.host else self._at_port(place.port)
        if taken is not None and taken.name != name:
            return (
                f"{place} leads to the service {taken.name} already: expose that one elsewhere, or choose another place"
            )
        owner = self._owner(user)
        self._forget_unused(owner)
        if not owner.may_open():
            return f"{_OPENINGS_MAX} public places were opened within {_KEEP_S:g} s: wait as long, then try again"
        if place.host:
            self.withdraw(name)
            self._hosts[place.host] = wanted
        else:
            if taken is not None:
                self.withdraw(name)  # the same port cannot be bound twice
            try:
                listener = self._listen_at(wanted)
            except OSError as error:
                _log.warning("not_public", user=user, service=name, place=str(wanted.address), text=error.strerror)
                return f"the relay cannot open {place}: {error.strerror}: tell its operator, or choose another port"
            self.withdraw(name)
            self._ports[place.port] = wanted, listener
        self._published[name] = wanted
        owner.names.add(name)
        _log.info("public", user=user, service=name, place=str(place), open=True)
        return ""

    def withdraw(self, name: str) -> None:
        found = self._published.pop(name, None)
        if found is None:
            return
        if found.place.host:
            del self._hosts[found.place.host]
        else:
            self._ports.pop(found.place.port)[1].close()
        owner = self._owners[found.user]
        owner.names.discard(name)
        self._forget_unused(owner)
        _log.info("public", user=found.user, service=name, place=str(found.place), open=False)

    def why_denied(self, user: str, place: PublicPlace) -> str:
        why = self._grants().why_not_public(user, place)
        found = None if place.host else self._at_port(place.port)
        if why or found is None or found.address == self._grants().public_address(user, place):
            return why
        return f"the rules open {place} at another address of the relay now: offer the service again"

    # --- for the relay

    @property
    def public_services(self) -> list[Published]:
        """All services that are public now."""
        return list(self._published.values())

    @property
    def open_connections(self) -> int:
        """The number of connections of people without the tunnel."""
        return self._connections.total

    def is_public(self, user: str, name: str) -> bool:
        """Whether this user's service of this name is public, and the present rules allow it."""
        found = self._published.get(name)
        return found is not None and found.user == user and not self.why_denied(user, found.place)

    async def listen(self, address: ListenAddress, tls: ssl.SSLContext | None) -> ListenAddress:
        """Serve HTTP services by host name at this address; return it with its actual port. Raise OSError if it cannot
        be bound."""
        sockets = await bind(address.host, address.port)
        self._http += [self._accept(sock, self._serve_by_host, tls, is_behind=True) for sock in sockets]
        return ListenAddress(address.host, sockets[0].getsockname()[1], tls is not None)

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use this context for connections that come from now on."""
        for listener in self._http:
            listener.use_tls(context)

    async def close(self) -> None:
        """Close all places, and end all connections."""
        for listener in [*self._http, *(listener for _, listener in self._ports.values())]:
            listener.close()
        self._http.clear()
        self._ports.clear()
        self._hosts.clear()
        self._published.clear()
        for side in list(self._sides):
            side.abort_both()
        owners, self._owners = self._owners, {}
        await asyncio.gather(*(owner.close() for owner in owners.values()), return_exceptions=True)
        await self._tasks.stop()

    # --- connections

    def _listen_at(self, published: Published) -> Acceptor:
        """Accept connections for a service at a port. Raise OSError if the port cannot be bound."""
        where = published.address
        assert where is not None  # the rules give the user this port
        family = socket.AF_INET6 if where.address.version == 6 else socket.AF_INET
        serve = partial(self._serve_http if published.place.http else self._serve_raw, published)
        return self._accept(listen(family, (str(where.address), where.port)), serve)

    def _accept(
        self,
        listening: socket.socket,
        serve: Callable[[CountedConnection, tuple[str, int]], PublicSide],
        tls: ssl.SSLContext | None = None,
        *,
        is_behind: bool = False,
    ) -> Acceptor:
        """Accept connections. `is_behind`: trusted proxies may stand in front."""
        return Acceptor(
            listening,
            serve,
            self._connections,
            tls=tls,
            tls_seconds=_TLS_S,
            turns=self._host().turns,
            tls_payer=STRANGERS,
            log=_log,
            too_many="of people without the tunnel",
            proxies=self._proxies if is_behind else None,
        )

    def _serve_raw(self, published: Published, counted: CountedConnection, client: tuple[str, int]) -> PublicSide:
        return PublicSide(counted, client, self._sides, partial(self._begin, published), self._gone)

    def _serve_http(self, published: Published, counted: CountedConnection, client: tuple[str, int]) -> PublicSide:
        return self._http_side(counted, client, partial(self._begin, published))

    def _serve_by_host(self, counted: CountedConnection, client: tuple[str, int]) -> PublicSide:
        return self._http_side(counted, client, self._begin_by_host)

    def _http_side(
        self, counted: CountedConnection, client: tuple[str, int], begin: Callable[[PublicSide], None]
    ) -> PublicSide:
        seconds, turns = self._limits.header_seconds, self._host().turns
        return HttpSide(counted, client, self._sides, begin, self._gone, seconds, turns)

    def _begin_by_host(self, side: PublicSide) -> None:
        assert isinstance(side, HttpSide)
        published = self._hosts.get(side.host)
        if published is None:
            side.refuse(404, "no service is offered under this host name")
        else:
            self._begin(published, side)

    def _begin(self, published: Published, side: PublicSide) -> None:
        owner = self._owners.get(published.user)
        if owner is None or self._published.get(published.name) != published:
            side.refuse(503, "the service is away")
            return
        held = sum(each.connections for each in self._owners.values())
        if owner.connections >= max(1, self._limits.public_connections_max - held):
            side.refuse(503, "the service has too many connections")
            return
        owner.connections += 1
        side.owner = owner.user
        side.opening = asyncio.get_running_loop().create_task(self._join(published, owner, side))

    async def _join(self, published: Published, owner: _Owner, side: PublicSide) -> None:
        """Open a stream to the service, and splice it to the connection."""
        turns = self._host().turns
        try:
            await turns.wait_for_turn(owner.user, REQUEST_US)
            await asyncio.shield(owner.started)
            transport, far = await owner.attachment.create_connection(TunnelSide, published.name, timeout=_OPEN_S)
        except (TunnelError, TimeoutError, RuntimeError) as error:
            side.refuse(504 if isinstance(error, TimeoutError) else 502, "the service does not answer")
            _log.info("not_connected", user=owner.user, service=published.name, text=str(error))
            return
        if published.place.proxy_header:
            far.write(proxy_header(side.client, side.server))
        splice(side, far)
        self._joined(side.client[0], owner.user, published.name, transport.connection_id)

    def _gone(self, side: PublicSide) -> None:
        owner = self._owners.get(side.owner)
        if owner is not None:
            owner.connections -= 1
            self._forget_unused(owner)

    # --- owners

    def _at_port(self, port: int) -> Published | None:
        found = self._ports.get(port)
        return None if found is None else found[0]

    def _owner(self, user: str) -> _Owner:
        owner = self._owners.get(user)
        if owner is None:
            self._attached += 1
            identity = public_endpoint_id(user, self._attached)
            # It has no name: under one, it and an endpoint of the user with the same name would replace each other.
            attachment = memory_attach(self._host(), user=user, identity=identity, linger=_LINGER_S)
            owner = self._owners[user] = _Owner(user, attachment)
        return owner

    def _forget_unused(self, owner: _Owner) -> None:
        """Close the owner's endpoint after some time, if it is still unused then."""
        if owner.timer is not None:
            owner.timer.cancel()
        owner.timer = asyncio.get_running_loop().call_later(_KEEP_S, self._forget, owner)

    def _forget(self, owner: _Owner) -> None:
        if not owner.names and not owner.connections and self._owners.get(owner.user) is owner:
            del self._owners[owner.user]
            self._tasks.keep(asyncio.get_running_loop().create_task(owner.close()))
