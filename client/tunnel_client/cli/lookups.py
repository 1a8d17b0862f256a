"""Event loops for commands: a lookup of a name delays neither the end of a command nor the end of the interpreter."""

import asyncio

from tunnel.process.event_loops import new_event_loop
from tunnel.system.lookups import LOOKUPS

__all__ = ["client_loop", "use_lookups"]


def client_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, as `new_event_loop` does, that looks names up in this way."""
    loop = new_event_loop()
    use_lookups(loop)
    return loop


def use_lookups(loop: asyncio.AbstractEventLoop) -> None:
    """Let this event loop look names up in threads for which nothing waits.

    Loops use a pool of threads instead, and both the loop and the interpreter end only when the pool has ended.
    """
    loop.getaddrinfo = LOOKUPS.ask  # type: ignore[method-assign]
