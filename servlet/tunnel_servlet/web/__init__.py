"""The relay as a web service: aiohttp, the event loop, the clock, and the exit in the same process."""

__all__: list[str] = []
