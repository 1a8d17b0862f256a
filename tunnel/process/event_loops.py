"""The event loop that commands run in."""

import asyncio

from tunnel.process.descriptors import raise_descriptor_limit
from tunnel.process.garbage import leave_alone_what_exists
from tunnel.process.malloc import keep_freed_memory

__all__ = ["new_event_loop"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop event loop, or asyncio's where uvloop is missing, and tune the process for moving bytes."""
    keep_freed_memory()
    raise_descriptor_limit()
    leave_alone_what_exists()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
