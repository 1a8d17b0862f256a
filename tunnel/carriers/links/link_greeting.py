"""A link after the 101, until the relay has answered its first message. Then the carrier decides how to use it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from tunnel.carriers.dialing.dial_secrets import DialSecrets
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.http.connections import reset_on_close
from tunnel.carriers.links.dialed_link import DialedLink
from tunnel.carriers.links.openers import Opened
from tunnel.exchange import LinkInput
from tunnel.system.tasks import KeptTasks

__all__ = ["Greeting"]


class _Carrier(Protocol):
    """Learns once how the opening of a link has ended."""

    def link_opened(self, link: DialedLink, road: str, sent_us: int) -> None: ...

    def not_opened(self, road: str, reason: str) -> None: ...


class Greeting:
    """Owns a link until the relay has answered its first message, then hands the link to the carrier."""

    def __init__(self, carrier: _Carrier, road: str, dialing: Dialing, secrets: DialSecrets, sent_us: int) -> None:
        self.timer: asyncio.TimerHandle
        self.link: DialedLink
        self._carrier = carrier
        self._road = road
        self._dialing = dialing
        self._secrets = secrets
        self._sent_us = sent_us  # when the request for the link left
        self._late = ""

    def begin(
        self, opened: Opened, greeting: bytes, seconds: float, now: Callable[[], int], closing: KeptTasks
    ) -> None:
        """Send the first message over the connection, and give it up if nothing has come back after `seconds`.

        `closing` keeps the tasks that close connections.
        """
        loop = asyncio.get_running_loop()
        timer = self.timer = loop.call_later(seconds, self.give_up, seconds)

        def closed(error: Exception | None) -> None:
            timer.cancel()
            opened.on_lost(error)
            closing.keep(loop.create_task(opened.close()))

        link = self.link = DialedLink(self, now, closed)
        link.begin(opened.transport, greeting, opened.early)

    def give_up(self, seconds: float) -> None:
        """Close the connection, on which nothing has come back in time."""
        self._late = f"the connection was upgraded (HTTP 101), but nothing came over it within {seconds:g} s"
        self.link.abort()

    def make_way(self, reason: str) -> None:
        """Close the connection with a reset, so that a proxy serves the next request at once."""
        self._late = reason
        reset_on_close(self.link.sockets())
        self.link.abort()

    # LinkOwner

    def link_open(self, link: DialedLink) -> None:
        self.timer.cancel()
        self._dialing.on_answered(self._secrets, 101, by_relay=True)
        self._carrier.link_opened(link, self._road, self._sent_us)

    def link_input(self, link: DialedLink, found: LinkInput) -> None:
        """Do nothing: no input comes before the relay's answer."""

    def link_writable(self, link: DialedLink) -> None:
        """Do nothing: no batch is written before the relay's answer."""

    def link_lost(self, link: DialedLink, reason: str) -> None:
        self._carrier.not_opened(self._road, self._late or reason)
