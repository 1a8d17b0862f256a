"""The carriers, which move batches between an endpoint and a relay: the half of each that dials the relay.

The modules of poll and link need aiohttp, so they are not imported here.
"""

from tunnel.carriers.base import Carrier, Host

__all__ = ["Carrier", "Host"]
