"""The carriers, which move batches between an endpoint and a relay: the endpoint's half of each.

The modules of poll and link need aiohttp, so they are not imported here.
"""

from tunnel.carriers.base import Carrier, Host

__all__ = ["Carrier", "Host"]
