"""An endpoint's attachment to a relay: it opens connections through the relay and offers services.

This module imports the rest of tunnel only when an attachment needs it. So `tunnel.attach`, which programs call within
their event loop, need not make the loop wait for these imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self, TypeVar

from tunnel.ground.defaults import BACKLOG, LIMIT_BYTES
from tunnel.ground.unused import WarnsIfUnused

if TYPE_CHECKING:
    from types import TracebackType

    from tunnel.attached_endpoint import AttachedEndpoint
    from tunnel.errors import TunnelError
    from tunnel.several_relays import SeveralRelays
    from tunnel.status import AttachmentStats, ConnectionListener, ErrorListener, StatisticsCollector, WaitListener
    from tunnel.streams.listener import Handler, Server
    from tunnel.streams.rate_limit import RateLimit
    from tunnel.streams.streams import StreamReader, StreamWriter
    from tunnel.streams.transport import Transport
    from tunnel.wire import PublicPlace

__all__ = ["Attachment", "endpoint_of"]

_P = TypeVar("_P", bound=asyncio.BaseProtocol)


class Attachment(WarnsIfUnused):
    """An endpoint's presence at a relay, or at several. Use it as an async context manager, within one event loop.

    `make` makes what is behind it: now, or, if `later`, when the attachment is first used. `start` then calls `make` in
    another thread, so that the event loop goes on.
    """

    _advice = "write `async with tunnel.attach(...) as t:`, or `await t.start()` and later `await t.close()`"

    def __init__(self, make: Callable[[], AttachedEndpoint | SeveralRelays], *, later: bool = False) -> None:
        self._make = make
        self._made: AttachedEndpoint | SeveralRelays | None = None if later else make()
        self._expect_use()

    @property
    def _endpoint(self) -> AttachedEndpoint | SeveralRelays:
        if self._made is None:
            self._load()
        assert self._made is not None
        return self._made

    def _load(self) -> None:
        made = self._make()
        if self._made is None:  # otherwise, a caller has asked for something while the imports ran
            self._made = made

    # lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._endpoint.interrupt()
        await self.close()

    async def start(self) -> None:
        """Attach, and return when the relay has answered; with the carrier link or websocket, after its first try.

        Raise UnreachableError when no relay answers, NotAuthenticatedError or DeniedError when it refuses.
        """
        self._mark_used()
        if self._made is None:
            await asyncio.to_thread(self._load)
        await self._endpoint.start()

    def leave(self) -> None:
        """Accept no further connections, and let the relay hand them to other endpoints. Open connections go on."""
        self._endpoint.leave()

    async def close(self) -> None:
        """Stop accepting connections, wait up to `linger` seconds for written bytes to arrive, then end everything."""
        self._mark_used()
        if self._made is not None:
            await self._made.close()

    # connections

    async def open_connection(
        self,
        host: str,
        port: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        limit: int = LIMIT_BYTES,
    ) -> tuple[StreamReader, StreamWriter]:
        """Connect to a TCP target; without a port, to the service called `host`.

        Raise RefusedError or DeniedError when the connection is refused, and TimeoutError after `timeout` seconds.
        """
        _require_target(host, port)
        return await self._endpoint.connect_streams(host, port, timeout, limit)

    async def create_connection(
        self,
        protocol_factory: Callable[[], _P],
        host: str,
        port: int | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> tuple[Transport, _P]:
        """Connect as `open_connection` does, but attach the connection to an asyncio protocol."""
        _require_target(host, port)
        made = await self._endpoint.connect(host, port, timeout)
        protocol = protocol_factory()
        made.begin(protocol)
        return made.transport, protocol

    async def check(self, host: str, port: int | None = None, *, timeout: float = 2.0) -> str:  # noqa: ASYNC109
        """Raise DeniedError if the relay's rules deny this connection. Nothing is opened; without an answer, return.

        If a connection of this attachment to the same target has no answer yet, return why, as the relay says it.
        """
        _require_target(host, port)
        return await self._endpoint.check(host, port, timeout)

    # services

    async def start_server(
        self,
        handler: Handler,
        name: str,
        *,
        backlog: int = BACKLOG,
        limit: int = LIMIT_BYTES,
        public: PublicPlace | None = None,
    ) -> Server:
        """Offer a service: call `handler(reader, writer)` for each connection.

        Of a burst of connections, at most `backlog` are opened at once. The others wait at the relay, where users take
        turns; one that has waited for 75 s is refused.

        At `public`, strangers, who do not use the tunnel, reach the service, too. Their user is called `relay:public`.

        Raise DeniedError if the relay does not allow the name or the public place. Without an answer from the relay,
        return after 2 s; the service is announced again until the relay answers.
        """
        _require_service(handler, name)
        return await self._endpoint.serve_streams(handler, limit, name, backlog, public)

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        name: str,
        *,
        backlog: int = BACKLOG,
        public: PublicPlace | None = None,
    ) -> Server:
        """Offer a service as `start_server` does, with an asyncio protocol for each connection."""
        _require_service(protocol_factory, name)
        return await self._endpoint.serve(lambda made: made.begin(protocol_factory()), name, backlog, public)

    # status

    @property
    def is_attached(self) -> bool:
        """Whether, by our latest information, the relay knows this attachment and answers."""
        return self._made is not None and self._made.is_attached

    @property
    def refusal(self) -> TunnelError | None:
        """The error with which the relay refused this attachment for good, or None. It ends every connection."""
        return None if self._made is None else self._made.refusal

    @property
    def rate_limit(self) -> RateLimit | None:
        """The limit of all connections together."""
        return self._endpoint.rate_limit

    def stats(self) -> AttachmentStats:
        """Return a snapshot of the attachment and its connections."""
        return self._endpoint.stats()

    async def set_pull_interval(self, seconds: float) -> float:
        """Ask the relay for another interval between pulls, and return the seconds on which the relay settles."""
        return await self._endpoint.set_pull_interval(seconds)

    def add_connection_listener(self, listener: ConnectionListener) -> None:
        """Notify `listener` when the attachment loses the relay, and when it has the relay again."""
        self._endpoint.listeners.connection.append(listener)

    def add_error_listener(self, listener: ErrorListener) -> None:
        """Notify `listener` of each HTTP connection to the relay that fails."""
        self._endpoint.listeners.error.append(listener)

    def add_wait_listener(self, listener: WaitListener) -> None:
        """Notify `listener` of connections that have no answer, and why."""
        self._endpoint.listeners.wait.append(listener)

    def set_statistics_collector(self, collector: StatisticsCollector | None) -> None:
        """Report to `collector` the bytes that are buffered and those that are written; None stops the reports."""
        self._endpoint.count_bytes(collector)

    def renew_secrets(
        self,
        *,
        token: str | None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = "env",
        refused: Callable[[int], None] = lambda status: None,
        relay: str = "",
    ) -> None:
        """Use these secrets from the next request on. The connections go on.

        The arguments are as in `attach`: a token of the same user, headers of the same names, another user and password
        at the same proxy. If the new secrets are refused, the previous ones stay in use as long as they are accepted,
        and `refused` is called with the HTTP status. It is 404 if the token belongs to another user, who needs an
        attachment of their own. Of several relays, the one with the URL `relay` gets them, by default the first one; if
        it has refused the previous ones for good, the attachment asks it again, and what is open elsewhere goes on.
        Raise ValueError, with advice, if a secret is invalid or this is none of the relays, and change nothing.
        """
        renew = self._endpoint.renew_at(relay)
        if renew is None:
            raise RuntimeError("an attachment in memory takes no other secrets: make another one")
        renew(token, headers or {}, proxy, refused)


def _require_target(host: object, port: object) -> None:
    """Raise TypeError for arguments that would fail deep inside, with a text that names none of them."""
    if not isinstance(host, str):
        raise TypeError(f"the host, or the name of a service, is a str, not {host!r}")
    if not isinstance(port, int | None):
        raise TypeError(f"the port is an int, not {port!r}")


def _require_service(serve: object, name: object) -> None:
    if not callable(serve) or not isinstance(name, str):
        raise TypeError(
            f"first comes what serves the connections, then the name of the service, not {serve!r}, {name!r}"
        )


def endpoint_of(attachment: Attachment) -> AttachedEndpoint | SeveralRelays:
    """Return the endpoint behind an attachment, for other parts of tunnel; programs do not need it."""
    return attachment._endpoint  # noqa: SLF001 - it is no name for users, and this is its module
