"""From a connection to a request: aiohttp's server, with limits, deadlines, turns and charges."""

__all__: list[str] = []
