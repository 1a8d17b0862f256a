"""Opens the links of a carrier, one at a time: it asks for an upgrade, then waits for the relay's greeting."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

import aiohttp

from tunnel.carriers.base import Host
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.links.dialed_link import DialedLink, hello
from tunnel.carriers.links.link_greeting import Greeting
from tunnel.carriers.links.openers import Opener, why_not
from tunnel.carriers.links.upgrade import UpgradeRefusedError
from tunnel.exchange import Ladder, Lanes
from tunnel.system.tasks import KeptTasks

__all__ = ["SECOND", "LinkOpener"]

SECOND = 1_000_000  # us

_OPEN_S = 10.0  # longest time that the upgrade may take
_MADE_WAY = "other requests had to wait while the road was tried: the path carries only a few requests at once"


class _Owner(Protocol):
    """Learns once how the opening of a link has ended."""

    def link_opened(self, link: DialedLink, road: str, sent_us: int) -> None: ...

    def not_opened(self, road: str, reason: str, *, is_ban: bool = False) -> None: ...


class LinkOpener:
    """Opens a link when `begin` is called, and tells its owner how that ended. The owner then calls `end`.

    The links lead through `dialings` in turn, to the same relay. `openers` open a connection on each road. `shares`:
    the relay is asked to let the links share the load.
    """

    def __init__(
        self,
        owner: _Owner,
        lanes: Lanes,
        ladder: Ladder,
        dialings: Sequence[Dialing],
        openers: Mapping[str, Opener],
        *,
        shares: bool = False,
    ) -> None:
        self._owner = owner
        self._lanes = lanes
        self._ladder = ladder
        self._dialings = itertools.cycle(dialings)
        self._openers = openers
        self._shares = shares
        self._opening: asyncio.Task[None] | None = None
        self._greeting: Greeting | None = None
        self._closing = KeptTasks()
        self._host: Host
        self._loop: asyncio.AbstractEventLoop

    def start(self, host: Host) -> None:
        """Start within the running event loop."""
        self._host = host
        self._loop = asyncio.get_running_loop()

    def begin(self, road: str) -> None:
        """Begin to open a link on this road. No other one may be opened meanwhile."""
        self._opening = self._loop.create_task(self._open(road))

    def end(self) -> None:
        """Forget the opening, which has ended."""
        self._opening = self._greeting = None

    def make_way(self, road: str) -> None:
        """Give up the opening, so that a proxy serves the next request at once."""
        if self._greeting is not None:
            self._greeting.make_way(_MADE_WAY)
        elif self._opening is not None:
            self._opening.cancel()
            self._closing.keep(self._opening)
            self._owner.not_opened(road, _MADE_WAY)

    def abort(self) -> None:
        """Give up the opening, if there is one."""
        if self._opening is not None:
            self._opening.cancel()
            self._closing.keep(self._opening)
        if self._greeting is not None:
            self._greeting.link.abort()

    async def close(self) -> None:
        """Return when every connection of this opener is closed."""
        await self._closing.done()

    async def _open(self, road: str) -> None:
        """Try once to open a link: request an upgrade, then greet."""
        dialing = next(self._dialings)
        secrets, sent_us = dialing.secrets, self._host.now()
        try:
            async with asyncio.timeout(_OPEN_S):
                opened = await self._openers[road](dialing)
        except Exception as error:
            if isinstance(error, UpgradeRefusedError | aiohttp.ClientHttpProxyError):
                dialing.on_answered(secrets, error.status)
            text, refusal, wait_us = why_not(error, dialing)
            if refusal is not None:
                self._lanes.path.backoff.on_refused(refusal, sent_us, self._host.now(), retry_after_us=wait_us)
            self._owner.not_opened(road, text, is_ban=refusal is not None and refusal.is_ban)
        else:
            registration = self._lanes.registration
            names = registration.id, registration.epoch, registration.generation
            greeting = hello(*names, shares=self._shares)
            owner = self._greeting = Greeting(self._owner, road, dialing, secrets, sent_us)
            owner.begin(opened, greeting, self._ladder.proof_us / SECOND, self._host.now, self._closing)
