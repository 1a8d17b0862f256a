"""The event loop of a command."""

import asyncio

from tunnel.malloc import keep_freed_memory

__all__ = ["new_event_loop"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it exists, in a process that moves bytes from now on."""
    keep_freed_memory()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
