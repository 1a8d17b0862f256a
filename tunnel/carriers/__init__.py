"""The dialing half of each way to move batches over HTTP. Only poll and link need aiohttp: import them by name."""

from tunnel.carriers.base import Carrier, Host

__all__ = ["Carrier", "Host"]
