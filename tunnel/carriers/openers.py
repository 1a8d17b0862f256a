"""The functions that open a connection on each road: a request, and its answer 101."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.upgrade import upgrade
from tunnel.carriers.websocket_dial import open_websocket

__all__ = ["OPENERS", "Opened", "Opener"]


class Opened(Protocol):
    """A connection on which 101 has come. `early`: the bytes that came with it."""

    @property
    def early(self) -> bytes: ...

    @property
    def transport(self) -> asyncio.Transport: ...

    def lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""

    async def close(self) -> None:
        """Close the connection, and what belongs to it."""


Opener: TypeAlias = Callable[[Dialing], Awaitable[Opened]]

OPENERS: dict[str, Opener] = {"link": upgrade, "websocket": open_websocket}
