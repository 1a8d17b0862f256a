"""A service that several relays offer: one `Server` for the application, one of each relay behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tunnel.errors import DeniedError
from tunnel.streams.listener import Server

__all__ = ["ServiceAtRelays"]


class ServiceAtRelays:
    """What is behind a `Server` of a service that several relays offer. It ends when it has ended at each of them."""

    def __init__(
        self,
        name: str,
        servers: dict[str, Server],
        on_refused: Callable[[str, DeniedError], None],
    ) -> None:
        """`servers`: by the URL of each relay that has taken the name. `on_refused` is called with the URL of a relay
        that no longer takes it."""
        loop = asyncio.get_running_loop()
        self.name = name
        self.refused: asyncio.Future[DeniedError] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._servers = servers
        self._errors: dict[str, str] = {}  # why other relays have not taken it, or take it no more, by URL
        self._on_refused = on_refused
        self._watch = loop.create_task(self._end())

    @property
    def is_serving(self) -> bool:
        return any(server.is_serving() for server in self._servers.values())

    @property
    def refusal(self) -> DeniedError | None:
        """The first relay's error if none of them takes the name any more."""
        found = [server.refusal for server in self._servers.values()]
        return found[0] if None not in found else None

    def why_not_at(self, url: str) -> str:
        """Return why this relay does not take the service; empty if it does, or has not been asked."""
        return self._errors.get(url, "")

    def refuse(self, url: str, error: Exception) -> None:
        """Note why a relay does not take the service now."""
        self._errors[url] = str(error)

    def add(self, url: str, server: Server) -> None:
        """Offer the service at one more relay."""
        if not self.is_serving:  # it was closed meanwhile
            server.close()
            return
        self._errors.pop(url, None)
        self._servers[url] = server
        self._watch.cancel()
        self._watch = asyncio.get_running_loop().create_task(self._end())

    def close(self) -> None:
        """Stop accepting connections at every relay."""
        for server in self._servers.values():
            server.close()

    async def _end(self) -> None:
        ends = [asyncio.ensure_future(server.wait_closed()) for server in self._servers.values()]
        refusals = {url: asyncio.ensure_future(server.refused()) for url, server in self._servers.items()}
        try:
            while not all(one.done() for one in ends):
                waiting: list[asyncio.Future[Any]] = [one for one in (*ends, *refusals.values()) if not one.done()]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for url in [url for url, one in refusals.items() if one.done()]:
                    self._on_refused(url, refusals.pop(url).result())
                if self.refusal is not None and not self.refused.done():
                    self.refused.set_result(self.refusal)
            if not self.closed.done():
                self.closed.set_result(None)
        finally:
            for one in (*ends, *refusals.values()):
                one.cancel()
