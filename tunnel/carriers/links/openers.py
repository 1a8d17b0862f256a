"""The functions that open a connection on each road: a request, and its answer 101."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import aiohttp

from tunnel.carriers.dialing.dialing import Dialing, retry_after_us
from tunnel.carriers.dialing.failures import describe_failure
from tunnel.carriers.links.upgrade import UpgradeRefusedError, upgrade
from tunnel.carriers.links.websocket_dial import open_websocket
from tunnel.exchange import Refusal, refusal_of, wait_us_of

__all__ = ["OPENERS", "Opened", "Opener", "why_not"]


class Opened(Protocol):
    """A connection on which 101 has come. `early`: the bytes that came with it."""

    @property
    def early(self) -> bytes: ...

    @property
    def transport(self) -> asyncio.Transport: ...

    def on_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""

    async def close(self) -> None:
        """Close the connection, and what belongs to it."""


Opener: TypeAlias = Callable[[Dialing], Awaitable[Opened]]

OPENERS: dict[str, Opener] = {"link": upgrade, "websocket": open_websocket}

# Other statuses may concern the upgrade alone, and exchanges pass.
_COUNTED = (407, 429, 503)


def why_not(error: Exception, dialing: Dialing) -> tuple[str, Refusal | None, int]:
    """Return why no connection was opened, for people; how that makes other requests to the relay wait; and the pause
    in microseconds that the answer asks for."""
    refusal: Refusal | None = None
    wait_us = 0
    if isinstance(error, UpgradeRefusedError | aiohttp.ClientHttpProxyError):
        if error.status in _COUNTED:
            wait_us = wait_us_of(error.status, retry_after_us(error.headers or {}))
            refusal = refusal_of(error.status, wait_us)
    else:
        is_closed = isinstance(error, aiohttp.ClientConnectionError | ConnectionError)
        refusal = Refusal.CLOSED if is_closed and not isinstance(error, aiohttp.ClientSSLError) else None
    text = str(error) if isinstance(error, UpgradeRefusedError) else describe_failure(error, dialing.base)
    return text, refusal, wait_us
