"""The relay as a web service: aiohttp, the event loop, the clock, and the inline exit."""

__all__: list[str] = []
