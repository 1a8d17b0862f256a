"""A real HTTP/1.1 proxy that hurts exchanges on purpose, by a seeded plan: `python -m loadtests.faultproxy --help`.

`faults` plans, `mangle` and `gate` hurt, `exchange` and what it uses carry, `proxy` is the whole. Messages end where
HTTP says; a client that ends its direction of the connection before it was answered has left.
"""

from loadtests.faultproxy.options import (
    Blackhole,
    Delay,
    Drop,
    FaultProxyOptions,
    Flip,
    Html,
    IdleCut,
    LateDuplicate,
    Status,
    Truncate,
)
from loadtests.faultproxy.proxy import FaultProxy
from loadtests.faultproxy.recorder import Counts

__all__ = [
    "Blackhole",
    "Counts",
    "Delay",
    "Drop",
    "FaultProxy",
    "FaultProxyOptions",
    "Flip",
    "Html",
    "IdleCut",
    "LateDuplicate",
    "Status",
    "Truncate",
]
